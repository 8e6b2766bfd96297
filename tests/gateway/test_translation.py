"""Calls in a protocol that their upstream does not speak: golden tests of the pairs that are allowed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
import pytest_asyncio
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler
from yarl import URL

from domain.usage import CallUsage
from gateway import translation
from gateway.denials import Denial
from gateway.translator import URL_HEADER
from gateway.translator_process import TranslatorProcess
from store.database import Database
from store.keys import GrantedModel
from tests.gateway.conftest import PROVIDER_KEY, Door, ended, opened_door
from tests.gateway.fake_provider import SSE, FakeProvider, Reply, events
from tests.waiting import eventually

USAGE = {
    "prompt_tokens": 150, "completion_tokens": 50, "total_tokens": 200,
    "prompt_tokens_details": {"cached_tokens": 20}, "completion_tokens_details": {"reasoning_tokens": 30},
}  # fmt: skip
TOLD = CallUsage(input_tokens=130, cached_input_tokens=20, output_tokens=50, reasoning_tokens=30)
HEAD = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "glm-5.3"}


def chat_chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "Bash", "arguments": ""}}
CHAT = events(
    chat_chunk({"role": "assistant", "content": ""}),
    chat_chunk({"reasoning_content": "hm "}),
    chat_chunk({"content": "I will"}),
    chat_chunk({"content": " do"}),
    chat_chunk({"tool_calls": [CALL]}),
    chat_chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"command":"ls"}'}}]}),
    chat_chunk({}, "tool_calls"),
    {**HEAD, "choices": [], "usage": USAGE},
    end=b"data: [DONE]\n\n",
)
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
MESSAGES = {
    "model": "glm", "max_tokens": 400, "stream": True, "thinking": {"type": "adaptive"},
    "output_config": {"effort": "high"}, "system": [{"type": "text", "text": "be good"}],
    "metadata": {"user_id": "u"}, "context_management": {"edits": []},
    "tools": [{"name": "Bash", "description": "d", "input_schema": SCHEMA}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
}  # fmt: skip
RESPONSES = {
    "model": "glm", "stream": True, "instructions": "be good", "reasoning": {"effort": "high"},
    "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
    "tools": [{"type": "function", "name": "Bash", "parameters": SCHEMA, "strict": False}],
    "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
}  # fmt: skip
GRANTED = (
    GrantedModel(name="glm", provider="zai", upstream_model="glm-5.3"),
    GrantedModel(name="flash", provider="gemini", upstream_model="gemini-3.5-flash"),
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def provider() -> AsyncIterator[FakeProvider]:
    async with FakeProvider().serving() as fake:
        yield fake


@pytest.fixture(scope="module")
def module_database_url(postgres: Any) -> str:
    import threading

    made: list[str] = []
    thread = threading.Thread(target=lambda: made.append(postgres.create("template_evolve")))
    thread.start()
    thread.join()
    return made[0]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared_door(module_database_url: str, provider: FakeProvider) -> AsyncIterator[Door]:
    """One translator for all of these: it takes seconds to start."""
    db = Database(module_database_url)
    async with opened_door(db, provider) as door:
        upstream = door.gateway.catalog.upstreams["zai"]
        object.__setattr__(upstream, "paths", {"chat": "/v1/chat/completions"})
        yield door
    await db.close()


@pytest_asyncio.fixture
async def door(shared_door: Door) -> Door:
    shared_door.provider.hits.clear()
    shared_door.provider.reply = Reply(CHAT, headers=SSE)
    shared_door.plan = None
    await shared_door.mint(models=GRANTED)
    return shared_door


def documents(received: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in received.decode().splitlines() if line.startswith("data: ")]


async def test_messages_are_asked_of_a_chat_server(door: Door) -> None:
    status, received, _ = await door.post("/v1/messages?beta=true", MESSAGES)
    assert status == 200
    [hit] = door.provider.hits
    assert hit.headers["authorization"] == f"Bearer {PROVIDER_KEY}"
    assert hit.document == {
        "model": "glm-5.3",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "be good"}]},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "Bash", "description": "d", "parameters": SCHEMA, "strict": False},
            }
        ],
        "reasoning_effort": "high",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 400,
    }
    told = documents(received)
    assert [event["type"] for event in told if not event["type"].startswith("content_block")] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    assert told[0]["message"]["model"] == "glm"
    deltas = [event["delta"] for event in told if event["type"] == "content_block_delta"]
    assert "".join(delta.get("thinking", "") for delta in deltas) == "hm "
    assert "".join(delta.get("text", "") for delta in deltas) == "I will do"
    assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == {"command": "ls"}
    assert told[-2]["delta"]["stop_reason"] == "tool_use"
    assert told[-2]["usage"] == {"input_tokens": 130, "output_tokens": 50, "cache_read_input_tokens": 20}
    [call] = await ended(door)
    assert (call.status, call.usage, call.protocol) == ("measured", TOLD, "messages")
    assert call.adjustments == (
        "translated messages to chat",
        "stripped member context_management",
        "stripped member metadata",
    )


async def test_responses_are_asked_of_a_chat_server(door: Door) -> None:
    status, received, _ = await door.post("/v1/responses", RESPONSES)
    assert status == 200
    [hit] = door.provider.hits
    asked = hit.document
    limit = asked.pop("max_tokens")
    assert asked == {
        "model": "glm-5.3",
        "messages": [
            {"role": "system", "content": "be good"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "Bash", "description": "", "parameters": SCHEMA, "strict": False},
            }
        ],
        "reasoning_effort": "high",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    told = documents(received)
    assert [event["type"] for event in told][:2] == ["response.created", "response.in_progress"]
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert {item["type"] for item in done} == {"reasoning", "message", "function_call"}
    call_item = next(item for item in done if item["type"] == "function_call")
    assert (call_item["name"], json.loads(call_item["arguments"])) == ("Bash", {"command": "ls"})
    text = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert text == "I will do"
    assert told[-1]["type"] == "response.completed"
    assert told[-1]["response"]["model"] == "glm"
    [call] = await ended(door)
    assert (call.status, call.usage) == ("measured", TOLD)
    assert call.adjustments == (
        "translated responses to chat",
        "stripped member include",
        "stripped member prompt_cache_key",
        "stripped member store",
        f"set max_output_tokens {limit}",
    )


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES)])
@pytest.mark.parametrize("status", [400, 429, 500])
async def test_a_provider_s_error_is_told_natively_and_asked_once(
    door: Door, path: str, body: dict[str, Any], status: int
) -> None:
    error = {"error": {"message": "prompt is too long", "type": "x", "param": None, "code": None}}
    headers = {"retry-after": "7", "content-type": "application/json"}
    door.provider.reply = Reply([json.dumps(error).encode()], status=status, headers=headers)
    received_status, received, answer = await door.post(path, body)
    assert received_status == status
    assert json.loads(received)["error"]["message"] == "prompt is too long"
    assert ("type" in json.loads(received)) == (path == "/v1/messages")
    assert answer.headers["retry-after"] == "7"
    [call] = await ended(door)
    assert (call.status, call.cost_nanos, call.http_status) == ("refused_upstream", 0, status)
    assert len(door.provider.hits) == 1


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES)])
async def test_a_cut_is_booked_at_its_hold_and_looks_cut(door: Door, path: str, body: dict[str, Any]) -> None:
    door.provider.reply = Reply(CHAT[:4], headers=SSE, is_cut=True)
    with pytest.raises(aiohttp.ClientPayloadError):
        await door.post(path, body)
    [call] = await ended(door)
    assert (call.status, call.is_upstream_cut) == ("held", True)
    assert len(door.provider.hits) == 1


async def test_a_client_that_leaves_is_billed_in_the_end(door: Door) -> None:
    gate = asyncio.Event()
    door.provider.reply = Reply(CHAT, headers=SSE, gates={4: gate})
    headers = {"authorization": f"Bearer {door.key}"}
    answer = await door.client.post(door.url + "/v1/messages", json=MESSAGES, headers=headers)
    await answer.content.readany()
    answer.close()
    gate.set()
    [call] = await ended(door)
    assert (call.status, call.usage) == ("measured", TOLD)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {**MESSAGES, "stream": False}),
        ("/v1/chat/completions", {"model": "flash", "messages": [], "stream": True}),
        ("/v1/messages", {**MESSAGES, "model": "flash"}),
    ],
)
async def test_a_pair_without_a_golden_test_is_refused_by_name(
    door: Door, path: str, body: dict[str, Any]
) -> None:
    status, received, answer = await door.post(path, body)
    assert (status, answer.headers["x-evolve-reason"]) == (400, "no_pair")
    assert "cannot be asked in" in json.loads(received)["error"]["message"]
    assert door.provider.hits == []


@pytest.mark.parametrize(("path", "body"), [("/v1/messages", MESSAGES), ("/v1/responses", RESPONSES)])
async def test_the_provider_s_key_is_in_no_translated_error_and_not_told_to_the_translator(
    door: Door, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    to_translator: list[bytes] = []
    relayed = translation._relay_error

    async def noted(inner: Any, upstream: Any) -> Any:
        answer = await relayed(inner, upstream)
        to_translator.append(cast(bytes, answer.body))
        return answer

    monkeypatch.setattr(translation, "_relay_error", noted)
    error = {"error": {"message": f"key {PROVIDER_KEY} is over its limit", "type": "x"}}
    seen = b""
    with structlog.testing.capture_logs() as lines:
        for status in (400, 401, 429, 500):
            headers = {"retry-after": PROVIDER_KEY, "content-type": "application/json"}
            door.provider.reply = Reply([json.dumps(error).encode()], status=status, headers=headers)
            _, received, answer = await door.post(path, body)
            seen += received + str(answer.headers).encode()
    rows = "".join(call.model_dump_json() for call in await door.calls())
    assert len(to_translator) == 4
    assert PROVIDER_KEY not in seen.decode() + b"".join(to_translator).decode() + json.dumps(lines) + rows
    assert "[provider key] is over its limit" in seen.decode()


async def test_an_operator_s_fault_is_hidden_of_translated_calls_too(door: Door) -> None:
    error = {"error": {"message": "Insufficient balance. Please recharge.", "code": "1113"}}
    door.provider.reply = Reply([json.dumps(error).encode()], status=429)
    status, received, answer = await door.post("/v1/messages", MESSAGES)
    assert (status, answer.headers["x-evolve-reason"]) == (400, "upstream_auth")
    assert b"recharge" not in received
    assert [(call.status, call.error_kind) for call in await ended(door)] == [
        ("refused_upstream", "insufficient_quota")
    ]


class _Standing:
    """A translator that answers as a test lets it."""

    is_fit = True

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.n_open = 0

    async def stop(self) -> None: ...


@asynccontextmanager
async def translated_by(door: Door, socket: Path, answer: Handler) -> AsyncGenerator[None]:
    app = web.Application()
    app.router.add_post("/{dialect}", answer)
    runner = web.AppRunner(app, handler_cancellation=False)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    pool = door.gateway.translation._pool
    real, pool._process = pool._process, cast(Any, _Standing(socket))
    try:
        yield
    finally:
        pool._process = real
        await runner.cleanup()


async def test_a_translator_that_does_not_start_costs_nothing(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_start(_process: TranslatorProcess) -> None:
        raise Denial("unavailable", "the translator does not start")

    monkeypatch.setattr(TranslatorProcess, "start", no_start)
    monkeypatch.setattr(door.gateway.translation._pool, "_process", None)
    status, _, answer = await door.post("/v1/messages", MESSAGES)
    assert (status, answer.headers["x-evolve-reason"]) == (503, "unavailable")
    [call] = await ended(door)
    assert (call.status, call.cost_nanos, call.error_kind) == ("failed", 0, "translator")
    assert door.provider.hits == []


async def test_a_translator_that_dies_before_it_asked_costs_nothing(door: Door, tmp_path: Path) -> None:
    async def die(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with translated_by(door, tmp_path / "t.sock", die):
        assert (await door.post("/v1/messages", MESSAGES))[0] == 502
    [call] = await ended(door)
    assert (call.status, call.cost_nanos, call.error_kind) == ("failed", 0, "translator")
    assert not call.is_upstream_cut
    assert door.provider.hits == []


async def test_a_translator_that_dies_after_it_asked_is_booked_at_the_hold(
    door: Door, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    door.provider.reply = Reply(CHAT, headers=SSE, gates={0: gate})

    async def ask_and_die(request: web.Request) -> web.StreamResponse:
        url = f"{request.headers[URL_HEADER]}/chat/completions"
        asking = asyncio.create_task(door.client.post(url, json={"model": "glm-5.3", "messages": []}))
        await eventually(lambda: bool(door.provider.hits))
        assert request.transport is not None
        request.transport.abort()
        asking.cancel()
        return web.Response()

    async with translated_by(door, tmp_path / "t.sock", ask_and_die):
        assert (await door.post("/v1/messages", MESSAGES))[0] == 502
        gate.set()
    [call] = await ended(door)
    assert (call.status, call.cost_nanos, call.error_kind) == ("held", call.hold_nanos, "translator")


async def test_a_door_does_not_open_for_a_call_that_is_booked_already(door: Door, tmp_path: Path) -> None:
    writers: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    body = b'{"model":"glm-5.3","messages":[]}'

    async def begin_and_die(request: web.Request) -> web.StreamResponse:
        url = URL(f"{request.headers[URL_HEADER]}/chat/completions")
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writers.append((reader, writer))
        head = f"POST {url.path} HTTP/1.1\r\nHost: door\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
        await eventually(lambda: not door.gateway.translation._expected)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with translated_by(door, tmp_path / "t.sock", begin_and_die):
        await door.post("/v1/messages", MESSAGES)
        assert [call.status for call in await ended(door)] == ["failed"]
        [(reader, writer)] = writers
        writer.write(body)
        assert b" 404 " in await reader.readline()
        writer.close()
    assert door.provider.hits == []


async def test_what_a_translator_prints_goes_where_somebody_reads(door: Door) -> None:
    assert (await door.post("/v1/messages", MESSAGES))[0] == 200
    process = door.gateway.translation._pool._process
    assert process is not None
    assert process._child is not None
    out, err = (os.readlink(f"/proc/{process._child.pid}/fd/{number}") for number in (1, 2))
    assert out == err


async def test_a_translator_that_dies_is_started_again(door: Door) -> None:
    assert (await door.post("/v1/messages", MESSAGES))[0] == 200
    process = door.gateway.translation._pool._process
    assert process is not None
    child = process._child
    assert child is not None
    child.kill()
    await child.wait()
    assert (await door.post("/v1/messages", MESSAGES))[0] == 200
