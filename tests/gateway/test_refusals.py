"""What is refused, and how: natively, by name, and before anything goes upstream."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
import structlog

from gateway.forward import MAX_COUNTS_OF_KEY
from store.database import Database, now
from store.keys import revoke_keys
from store.provider_keys import set_provider_key
from store.server_secret import ServerSecret
from tests.gateway.conftest import DOLLAR, PROVIDER_KEY, Door, ended
from tests.gateway.fake_provider import SSE, FakeProvider, Reply, events
from tests.waiting import eventually

MESSAGES = {"model": "opus", "max_tokens": 1000, "messages": []}
CHAT = {"model": "sol", "max_tokens": 1000, "messages": []}
RESPONSES = {"model": "sol", "max_output_tokens": 1000, "input": []}
GEMINI_PATH = "/v1beta/models/flash%2Fx:generateContent"


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses", GEMINI_PATH])
async def test_an_unknown_key_is_refused_in_each_protocol(door: Door, path: str) -> None:
    status, received, _ = await door.post(path, MESSAGES, key="", authorization="Bearer evk-nobody")
    error = json.loads(received)["error"]
    assert status == 401
    assert "authentication_error" in received.decode() or error["code"] in ("invalid_api_key", 401)
    assert door.provider.hits == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {**MESSAGES, "model": "claude-opus-5-5"}),
        ("/v1/chat/completions", {**CHAT, "model": "gpt-6.1-sol"}),
        ("/v1/responses", {**RESPONSES, "model": "sol "}),
        ("/v1beta/models/flash:generateContent", {}),
        ("/v1beta/models/..%2Fflash%2Fx:generateContent", {}),
    ],
)
async def test_a_model_that_is_not_the_key_s_by_its_exact_id_is_refused(
    door: Door, path: str, body: dict[str, Any]
) -> None:
    status, received, _ = await door.post(path, body)
    assert status == 404
    assert "does not exist" in json.loads(received)["error"]["message"]
    assert door.provider.hits == []
    assert await door.calls() == []


async def test_a_model_without_a_price_is_refused(door: Door) -> None:
    status, received, _ = await door.post("/v1/chat/completions", {**CHAT, "model": "unpriced"})
    assert status == 400
    assert "price of gpt-99 is not known" in json.loads(received)["error"]["message"]
    assert door.provider.hits == []
    [call] = await door.calls()
    assert (call.status, call.refusal, call.hold_nanos) == ("refused", "unpriced", 0)


async def test_a_provider_without_a_key_is_told_to_the_trial(door: Door) -> None:
    door.gateway.catalog.keys = {}
    status, received, _ = await door.post("/v1/messages", MESSAGES)
    assert (status, "no key of anthropic" in received.decode()) == (400, True)
    assert [(call.status, call.refusal) for call in await door.calls()] == [("refused", "no_provider_key")]


async def test_a_provider_s_key_that_does_not_open_is_told_to_the_trial(door: Door, db: Database) -> None:
    await set_provider_key(db, ServerSecret("another secret of an earlier installation"), "anthropic", "sk")
    status, received, answer = await door.post("/v1/messages", MESSAGES)
    assert (status, answer.headers["x-evolve-reason"]) == (400, "no_provider_key")
    assert "cannot read its key of anthropic" in json.loads(received)["error"]["message"]
    assert [(call.status, call.refusal) for call in await door.calls()] == [("refused", "no_provider_key")]
    assert (await door.post("/v1/messages/count_tokens", MESSAGES))[0] == 400
    assert door.provider.hits == []


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/messages", {**MESSAGES, "fallbacks": [{"model": "other"}]}, "fallbacks"),
        ("/v1/messages", {**MESSAGES, "mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ("/v1/messages", {**MESSAGES, "tools": [{"type": "code_execution_20250825"}]}, "code_execution"),
        ("/v1/messages", {**MESSAGES, "max_tokens": -1}, "max_tokens"),
        ("/v1/messages", {**MESSAGES, "MAX_TOKENS": 10}, "MAX_TOKENS"),
        ("/v1/messages", {**MESSAGES, "context_management": {"edits": [{"type": "compact_1"}]}}, "compact"),
        ("/v1/chat/completions", {**CHAT, "models": ["a"]}, "models"),
        ("/v1/chat/completions", {**CHAT, "n": 2}, "n must be"),
        ("/v1/chat/completions", {**CHAT, "stream": 1}, "stream"),
        ("/v1/chat/completions", {**CHAT, "service_tier": "unheard"}, "service_tier"),
        ("/v1/responses", {**RESPONSES, "prompt": {"id": "p"}}, "prompt"),
        ("/v1/responses", {**RESPONSES, "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {**RESPONSES, "background": True}, "background"),
        ("/v1/responses", {**RESPONSES, "input": [{"type": "input_file", "file_id": "f"}]}, "file_id"),
        (GEMINI_PATH, {"cachedContent": "c"}, "cachedContent"),
        (GEMINI_PATH, {"generation_config": {"maxOutputTokens": 9}}, "generationConfig"),
        (GEMINI_PATH, {"generationConfig": {"candidateCount": 3}}, "candidateCount"),
        (GEMINI_PATH, {"tools": [{"codeExecution": {}}]}, "codeExecution"),
        (GEMINI_PATH, {"generationConfig": {"candidate_count": 8}}, "candidateCount"),
        (GEMINI_PATH, {"generationConfig": {"maxOutputTokens": 1, "max_output_tokens": 9}}, "maxOutput"),
        (GEMINI_PATH, {"generationConfig": {"response_modalities": ["IMAGE"]}}, "responseModalities"),
        ("/v1/chat/completions", {**CHAT, "N": 2}, "write it n"),
        ("/v1/chat/completions", {**CHAT, "tools": {"type": "web_search"}}, "tools must be a list"),
        ("/v1/responses", {**RESPONSES, "input": [{"type": "item_reference", "id": "i"}]}, "item_reference"),
        ("/v1/responses", {**RESPONSES, "input": [{"id": "i"}]}, "item_reference"),
    ],
)
async def test_what_has_no_bound_or_leads_elsewhere_is_refused_by_name(
    door: Door, path: str, body: dict[str, Any], named: str
) -> None:
    status, received, answer = await door.post(path, body)
    assert status == 400
    assert named in json.loads(received)["error"]["message"]
    assert answer.headers["x-should-retry"] == "false"
    assert door.provider.hits == []


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"opus","max_tokens":5,"max_tokens":50000,"messages":[]}',
        b'{"model":"opus","max_tokens":5,"messages":[{"role":"user","role":"assistant"}]}',
        b'{"model":"opus","max_tokens":NaN}',
        b"[1]",
        b'{"model":"opus"} {}',
        b'{"model":"opus",}',
        b'{"model":"\xff"}',
        b"",
        b"[" * 100_000,
    ],
)
async def test_a_body_that_two_readers_could_read_differently_is_refused(door: Door, body: bytes) -> None:
    assert (await door.post("/v1/messages", body))[0] == 400
    assert door.provider.hits == []


async def test_a_body_above_32_megabytes_is_refused_natively(door: Door) -> None:
    body = b'{"model":"opus","x":"' + b"x" * (32 * 1024 * 1024) + b'"}'
    status, received, _ = await door.post("/v1/messages", body)
    assert (status, json.loads(received)["error"]["type"]) == (413, "request_too_large")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/responses", GEMINI_PATH])
async def test_a_spent_cap_is_a_native_402_that_is_not_to_be_tried_again(door: Door, path: str) -> None:
    key = await door.mint(cap_nanos=DOLLAR // 1000)
    body = {"/v1/messages": MESSAGES, "/v1/chat/completions": CHAT, "/v1/responses": RESPONSES}.get(path, {})
    status, received, answer = await door.post(path, body, key="", authorization=f"Bearer {key}")
    assert status == 402
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-evolve-reason"] == "own_cap"
    assert "cap" in json.loads(received)["error"]["message"]
    assert door.provider.hits == []
    [call] = await door.calls(key)
    assert (call.status, call.refusal) == ("refused", "own_cap")


async def test_the_platform_s_stop_is_told_as_other(door: Door, db: Database) -> None:
    async with db.transaction() as connection:
        await connection.execute("INSERT INTO platform_stop (id, is_on, updated_at) VALUES (1, true, now())")
    status, received, answer = await door.post("/v1/messages", MESSAGES)
    assert (status, answer.headers["x-evolve-reason"]) == (402, "other")
    assert json.loads(received)["error"]["message"].startswith("other: ")


async def test_a_revoked_and_an_expired_key_are_refused(door: Door, db: Database) -> None:
    assert door.plan is not None
    await revoke_keys(db, door.plan.trial_id, 1)
    assert (await door.post("/v1/messages", MESSAGES))[0] == 401
    expired = await door.mint(expires_at=now() - timedelta(seconds=1))
    assert (await door.post("/v1/messages", MESSAGES, key="", authorization=f"Bearer {expired}"))[0] == 401
    assert door.provider.hits == []


@pytest.mark.parametrize("status", [401, 403])
async def test_a_provider_that_refuses_our_key_is_our_fault_and_tells_nothing_of_it(
    door: Door, status: int
) -> None:
    body = f'{{"error":{{"message":"Incorrect API key provided: {PROVIDER_KEY}"}}}}'.encode()
    door.provider.reply = Reply([body], status=status)
    received_status, received, answer = await door.post("/v1/chat/completions", CHAT)
    assert received_status == 400  # on which every harness ends at once
    assert PROVIDER_KEY not in received.decode() + str(answer.headers)
    assert "access to the provider" in json.loads(received)["error"]["message"]
    assert [(call.http_status, call.error_kind) for call in await door.calls()] == [
        (status, "authentication_error")
    ]


GEMINI_KEY_ERROR = {
    "error": {
        "code": 400, "message": "API key not valid. Please pass one.", "status": "INVALID_ARGUMENT",
        "details": [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}],
    }
}  # fmt: skip
EMPTY_ACCOUNT = {
    "type": "error",
    "error": {
        "type": "invalid_request_error",
        "message": "Your credit balance is too low to access the Anthropic API.",
    },
}
NO_QUOTA = {
    "error": {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": None}
}
OPERATOR_FAULTS = [
    (GEMINI_PATH, {}, 400, GEMINI_KEY_ERROR, "authentication_error"),
    (GEMINI_PATH, {}, 400, [GEMINI_KEY_ERROR], "authentication_error"),
    ("/v1/messages", MESSAGES, 400, EMPTY_ACCOUNT, "billing_error"),
    ("/v1/chat/completions", CHAT, 429, NO_QUOTA, "insufficient_quota"),
    ("/v1/responses", RESPONSES, 429, NO_QUOTA, "insufficient_quota"),
    ("/v1/chat/completions", CHAT, 400, {"error": {"code": "Arrearage", "message": "x"}}, "billing_error"),
    ("/v1/messages/count_tokens", MESSAGES, 400, EMPTY_ACCOUNT, None),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "error", "kind"), OPERATOR_FAULTS)
async def test_an_operator_s_fault_is_none_of_the_agent_s_whatever_its_status(
    door: Door, path: str, body: dict[str, Any], status: int, error: Any, kind: str | None
) -> None:
    door.provider.reply = Reply([json.dumps(error).encode()], status=status)
    received_status, received, answer = await door.post(path, body)
    assert (received_status, answer.headers["x-evolve-reason"]) == (400, "upstream_auth")
    told = json.loads(received)["error"]["message"]
    assert told == "the gateway's own access to the provider was refused"
    calls = [(call.status, call.http_status, call.error_kind) for call in await door.calls()]
    assert calls == ([] if kind is None else [("refused_upstream", status, kind)])


async def test_a_request_that_only_quotes_such_words_stays_the_agent_s(door: Door) -> None:
    quoted = "messages.0: 'Your credit balance is too low', API_KEY_INVALID, insufficient_quota"
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": quoted}}
    door.provider.reply = Reply([json.dumps(error).encode()], status=400)
    status, received, _ = await door.post("/v1/messages", MESSAGES)
    assert (status, json.loads(received)) == (400, error)
    assert [call.error_kind for call in await door.calls()] == ["http_400"]


async def test_an_operator_s_fault_within_a_stream_has_its_word_too(door: Door) -> None:
    error = {"error": {"type": "invalid_request_error", "code": "insufficient_quota", "message": "none left"}}
    door.provider.reply = Reply(events(error), headers=SSE)
    await door.post("/v1/chat/completions", {**CHAT, "stream": True})
    assert [call.error_kind for call in await ended(door)] == ["insufficient_quota"]


async def test_the_provider_s_key_is_never_visible(door: Door, db: Database) -> None:
    echo = f'{{"error":{{"message":"key {PROVIDER_KEY} is over its limit"}}}}'.encode()
    seen = b""
    with structlog.testing.capture_logs() as lines:
        for status in (200, 400, 401, 429, 500):
            door.provider.reply = Reply([echo], status=status, headers={"x-request-id": PROVIDER_KEY})
            if status == 200:
                door.provider.reply = Reply([b"{}"], headers={"set-cookie": PROVIDER_KEY})
            _, received, answer = await door.post(f"/v1/chat/completions?key={door.key}", CHAT)
            seen += received + str(answer.headers).encode()
    async with db.transaction() as connection:
        rows = await connection.fetch("SELECT to_jsonb(c)::text AS row FROM gateway_calls c")
    text = seen.decode() + json.dumps(lines) + "".join(row["row"] for row in rows)
    assert len(rows) == len(door.provider.hits) == 5
    assert PROVIDER_KEY not in text
    assert door.key not in json.dumps(lines) + "".join(row["row"] for row in rows)
    assert all(hit.headers["authorization"] == f"Bearer {PROVIDER_KEY}" for hit in door.provider.hits)


async def test_what_harnesses_ask_beside_calls_is_answered(door: Door) -> None:
    client, auth = door.client, {"authorization": f"Bearer {door.key}"}
    async with client.head(door.url + "/") as answer:
        assert answer.status == 200
    async with client.get(door.url + "/v1/models", headers=auth) as answer:
        names = [model["id"] for model in (await answer.json())["data"]]
        assert names == ["opus", "sol", "flash/x", "kimi-k3", "unpriced"]
    anthropic = {"x-api-key": door.key, "anthropic-version": "2023-06-01"}
    async with client.get(door.url + "/v1/models", headers=anthropic) as answer:
        assert (await answer.json())["has_more"] is False
    async with client.get(door.url + "/v1beta/models", headers={"x-goog-api-key": door.key}) as answer:
        assert (await answer.json())["models"][0]["name"] == "models/opus"
    async with client.get(door.url + "/v1/models/flash%2Fx", headers=auth) as answer:
        assert (await answer.json())["id"] == "flash/x"
    async with client.get(door.url + "/v1/responses/resp_1", headers=auth) as answer:
        assert answer.status == 404
        assert "resp_1" in (await answer.json())["error"]["message"]
    upgrade = {**auth, "connection": "Upgrade", "upgrade": "websocket"}
    async with client.get(door.url + "/v1/responses", headers=upgrade) as answer:
        assert answer.status == 426
    assert (await door.post("/v1/responses/compact", RESPONSES))[0] == 404
    assert door.provider.hits == []


async def test_tokens_are_counted_by_who_counts_for_nothing_else_estimated(door: Door) -> None:
    door.provider.reply = Reply([b'{"input_tokens":42}'])
    body = {"model": "opus", "messages": []}
    assert json.loads((await door.post("/v1/messages/count_tokens", body))[1]) == {"input_tokens": 42}
    [hit] = door.provider.hits
    assert (hit.path, hit.document["model"]) == ("/v1/messages/count_tokens", "claude-opus-5-5")
    other = {"model": "kimi-k3", "messages": [{"role": "user", "content": "x" * 300}]}
    estimates = {(await door.post("/v1/messages/count_tokens", other))[1] for _ in range(2)}
    assert len(estimates) == 1
    assert 100 <= json.loads(estimates.pop())["input_tokens"] <= 130
    assert len(door.provider.hits) == 1
    assert await door.calls() == []


async def test_one_key_s_counts_of_tokens_keep_nobody_else_from_counting(door: Door) -> None:
    gate = asyncio.Event()
    door.provider.reply = Reply([b'{"input_tokens":42}'], gates={0: gate})
    count = ("/v1/messages/count_tokens", MESSAGES)
    counts = [asyncio.create_task(door.post(*count)) for _ in range(MAX_COUNTS_OF_KEY)]
    await eventually(lambda: len(door.provider.hits) == MAX_COUNTS_OF_KEY)
    status, _, answer = await door.post(*count)
    assert (status, answer.headers["x-evolve-reason"]) == (429, "in_flight")
    other = await door.mint()
    door.provider.reply = Reply([b'{"input_tokens":42}'])
    assert (await door.post(*count, key="", authorization=f"Bearer {other}"))[0] == 200
    gate.set()
    assert [(await each)[0] for each in counts] == [200] * MAX_COUNTS_OF_KEY
    assert not door.gateway.forwarder._counting


async def test_nothing_is_served_while_the_ledger_is_away(provider: FakeProvider, db: Database) -> None:
    from tests.gateway.conftest import opened_door

    async with opened_door(db, provider) as door:
        await door.mint()
        door.gateway.ledger._db = door.gateway.catalog.db = Database("postgresql://nobody@127.0.0.1:9/none")
        status, received, answer = await door.post("/v1/messages", MESSAGES)
        assert (status, answer.headers["x-evolve-reason"]) == (503, "unavailable")
        assert int(answer.headers["retry-after"]) > 0
        assert json.loads(received)["error"]["type"] == "api_error"
        assert provider.hits == []
