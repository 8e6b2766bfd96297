"""What passes through the gateway passes unchanged."""

from __future__ import annotations

import json

import pytest

from domain.prices import cost_nanos, price_book
from domain.usage import CallUsage
from tests.gateway.conftest import PROVIDER_KEY, Door
from tests.gateway.fake_provider import (
    CHAT_STREAM,
    GEMINI_STREAM,
    MESSAGES_STREAM,
    RESPONSES_STREAM,
    SSE,
    Reply,
)

STREAMS = {
    "messages": (
        "/v1/messages?beta=true",
        {"model": "opus", "max_tokens": 32000, "stream": True, "messages": []},
        MESSAGES_STREAM,
        ("anthropic", "claude-opus-5-5"),
        CallUsage(
            input_tokens=100, cached_input_tokens=20, cache_write_5m_tokens=10, cache_write_1h_tokens=20,
            output_tokens=50,
        ),
    ),
    "chat": (
        "/v1/chat/completions",
        {"model": "sol", "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}},
        CHAT_STREAM,
        ("openai", "gpt-6.1-sol"),
        CallUsage(input_tokens=130, cached_input_tokens=20, output_tokens=50, reasoning_tokens=30),
    ),
    "responses": (
        "/v1/responses",
        {"model": "sol", "max_output_tokens": 500, "stream": True, "input": []},
        RESPONSES_STREAM,
        ("openai", "gpt-6.1-sol"),
        CallUsage(input_tokens=130, cached_input_tokens=20, output_tokens=50, reasoning_tokens=30),
    ),
    "gemini": (
        "/v1beta/models/flash%2Fx:streamGenerateContent?alt=sse",
        {"contents": [], "generationConfig": {"maxOutputTokens": 500}},
        GEMINI_STREAM,
        ("gemini", "gemini-3.5-flash"),
        CallUsage(input_tokens=130, cached_input_tokens=20, output_tokens=50, reasoning_tokens=30),
    ),
}  # fmt: skip


@pytest.mark.parametrize("dialect", STREAMS)
async def test_a_stream_is_byte_identical_and_metered_to_the_nano_dollar(door: Door, dialect: str) -> None:
    path, body, chunks, (provider, model), usage = STREAMS[dialect]
    door.provider.reply = Reply(chunks, headers=SSE)
    status, received, answer = await door.post(path, body)
    assert (status, received) == (200, b"".join(chunks))
    assert answer.headers["content-type"] == SSE["content-type"]
    assert answer.headers["request-id"] == "req_1"
    assert "x-secret" not in answer.headers
    [call] = await door.calls()
    price = price_book().price(provider, model)
    assert price is not None
    assert call.usage == usage
    assert call.cost_nanos == cost_nanos(price, usage)
    assert (call.status, call.http_status, call.upstream_model) == ("measured", 200, model)
    assert call.first_byte_ms is not None


async def test_a_stream_that_is_torn_anywhere_is_metered_alike(door: Door) -> None:
    path, body, chunks, _, usage = STREAMS["messages"]
    text = b"".join(chunks)
    door.provider.reply = Reply([text[at : at + 7] for at in range(0, len(text), 7)], headers=SSE)
    _, received, _ = await door.post(path, body)
    assert received == text
    assert (await door.calls())[0].usage == usage


async def test_members_that_nobody_knows_reach_the_provider_byte_for_byte(door: Door) -> None:
    body = (
        b'{ "x_unknown" : [1.0, 1e3, "\\ud83d\\ude00\\u00fc\\/", null],\n "model":"opus", "max_tokens" :100,'
        b'"metadata":{"user_id":"\xc3\xbc"},"thinking":{"type":"adaptive","x":[]},"messages":[] }'
    )
    await door.post("/v1/messages?beta=true", body, **{"anthropic-beta": "new-2027", "x-box": "secret"})
    [hit] = door.provider.hits
    assert hit.body == body.replace(b'"opus"', b'"claude-opus-5-5"')
    assert (hit.path, hit.query) == ("/v1/messages", "beta=true")
    assert hit.headers["anthropic-beta"] == "new-2027"
    assert hit.headers["anthropic-version"] == "2023-06-01"
    assert hit.headers["x-api-key"] == PROVIDER_KEY
    assert "x-box" not in hit.headers
    assert "authorization" not in hit.headers


async def test_limits_and_usage_are_asked_for_where_a_request_has_none(door: Door) -> None:
    await door.post("/v1/chat/completions", {"model": "sol", "messages": [], "stream": True})
    await door.post("/v1/chat/completions", {"model": "kimi-k3", "messages": [], "max_tokens": 9**9})
    await door.post("/v1beta/models/flash%2Fx:generateContent?key=" + door.key, {"contents": []}, key="query")
    sol, kimi, flash = door.provider.hits
    assert sol.document == {
        "model": "gpt-6.1-sol",
        "messages": [],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 128000,
    }
    assert kimi.document["max_tokens"] == 1048576
    assert flash.document == {"contents": [], "generationConfig": {"maxOutputTokens": 65536}}
    assert (flash.path, flash.query) == ("/v1beta/models/gemini-3.5-flash:generateContent", "")
    assert flash.headers["x-goog-api-key"] == PROVIDER_KEY
    adjustments = [call.adjustments for call in await door.calls()]
    assert adjustments == [
        ("set max_completion_tokens 128000",),
        ("clamped max_tokens 387420489 to 1048576",),
        ("set maxOutputTokens 65536",),
    ]


async def test_who_did_not_ask_for_usage_does_not_see_its_chunk(door: Door) -> None:
    door.provider.reply = Reply(CHAT_STREAM, headers=SSE)
    _, received, _ = await door.post("/v1/chat/completions", {"model": "sol", "messages": [], "stream": True})
    assert received == b"".join([*CHAT_STREAM[:2], CHAT_STREAM[3]])
    assert (await door.calls())[0].status == "measured"


async def test_hosted_tools_are_stripped_and_said_so(door: Door) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "Bash", "input_schema": {}}]
    body = {"model": "opus", "max_tokens": 5, "messages": [], "tools": tools}
    await door.post("/v1/messages", body)
    assert door.provider.hits[0].document["tools"] == tools[1:]
    assert (await door.calls())[0].adjustments == ("stripped tool web_search_20250305",)


async def test_whole_documents_pass_and_are_metered(door: Door) -> None:
    document = {"usage": {"input_tokens": 7, "output_tokens": 3}, "x_unknown": [1.0]}
    door.provider.reply = Reply([json.dumps(document, indent=3).encode()])
    _, received, _ = await door.post("/v1/messages", {"model": "opus", "max_tokens": 5, "messages": []})
    assert received == door.provider.reply.chunks[0]
    assert (await door.calls())[0].usage == CallUsage(input_tokens=7, output_tokens=3)


async def test_an_array_of_gemini_documents_is_metered(door: Door) -> None:
    parts = [{"usageMetadata": {"promptTokenCount": 5}}]
    parts.append({"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 2, "totalTokenCount": 7}})
    door.provider.reply = Reply([json.dumps(parts).encode()])
    await door.post("/v1beta/models/flash%2Fx:streamGenerateContent", {"contents": []})
    assert (await door.calls())[0].usage == CallUsage(input_tokens=5, output_tokens=2)
