"""Whole streams of the providers' shapes, and what each costs by hand: no figure here is ours to compute."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog

from domain.prices import ModelPrice
from store.keys import GrantedModel
from tests.gateway.conftest import Door, ended
from tests.gateway.fake_provider import SSE, Reply

# Nano-dollars a million tokens: $5 is 5_000_000_000, so a token is 5_000.
OPUS = {
    "input": 5_000_000_000, "output": 25_000_000_000, "cached_input": 500_000_000,
    "cache_write_5m": 6_250_000_000, "cache_write_1h": 10_000_000_000,
}  # fmt: skip
GPT = {"input": 1_250_000_000, "output": 10_000_000_000, "cached_input": 125_000_000}
PRO = {
    "rates": {"input": 1_250_000_000, "output": 10_000_000_000, "cached_input": 125_000_000},
    "long_prompts": [
        {
            "above_prompt_tokens": 200_000, "input": 2_500_000_000, "output": 15_000_000_000,
            "cached_input": 250_000_000,
        }
    ],
}  # fmt: skip

ANTHROPIC = """event: message_start
data: {"type":"message_start","message":{"model":"claude-opus-5-5","id":"msg_01","type":"message",\
"role":"assistant","content":[],"stop_reason":null,"usage":{"input_tokens":2095,\
"cache_creation_input_tokens":12288,"cache_read_input_tokens":110432,"cache_creation":\
{"ephemeral_5m_input_tokens":8192,"ephemeral_1h_input_tokens":4096},"output_tokens":3,\
"service_tier":"standard"}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}

event: ping
data: {"type":"ping"}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":\
{"type":"text_delta","text":"\\"usage\\": {\\"output_tokens\\": 9}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":\
{"input_tokens":2095,"cache_creation_input_tokens":12288,"cache_read_input_tokens":110432,\
"output_tokens":1417}}

event: message_stop
data: {"type":"message_stop"}

"""
RESPONSES = """event: response.created
data: {"type":"response.created","sequence_number":0,"response":{"id":"resp_1","model":"gpt-5-2025-08-07",\
"status":"in_progress","service_tier":"auto","usage":null}}

event: response.reasoning_summary_text.delta
data: {"type":"response.reasoning_summary_text.delta","delta":"**Looking**","sequence_number":3}

event: response.output_text.delta
data: {"type":"response.output_text.delta","delta":"done","sequence_number":4}

event: response.completed
data: {"type":"response.completed","sequence_number":9,"response":{"id":"resp_1","model":"gpt-5-2025-08-07",\
"status":"completed","service_tier":"default","usage":{"input_tokens":48211,"input_tokens_details":\
{"cached_tokens":45056},"output_tokens":2913,"output_tokens_details":{"reasoning_tokens":2304},\
"total_tokens":51124}}}

"""
CHAT = """data: {"id":"c","object":"chat.completion.chunk","model":"gpt-5-2025-08-07",\
"service_tier":"default","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","model":"gpt-5-2025-08-07","service_tier":"default",\
"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}

data: {"id":"c","object":"chat.completion.chunk","model":"gpt-5-2025-08-07","service_tier":"default",\
"choices":[],"usage":{"prompt_tokens":10240,"completion_tokens":1111,"total_tokens":11351,\
"prompt_tokens_details":{"cached_tokens":9216,"audio_tokens":0},"completion_tokens_details":\
{"reasoning_tokens":1024,"audio_tokens":0,"accepted_prediction_tokens":0}}}

data: [DONE]

"""
GEMINI = """data: {"candidates":\
[{"content":{"parts":[{"text":"**Hm**","thought":true}],"role":"model"},"index":0}],\
"usageMetadata":{"promptTokenCount":240000,"cachedContentTokenCount":196608,"thoughtsTokenCount":700,\
"totalTokenCount":240700},"modelVersion":"gemini-2.5-pro"}

data: {"candidates":[{"content":{"parts":[{"text":"done"}],"role":"model"},"finishReason":"STOP","index":0}],\
"usageMetadata":{"promptTokenCount":240000,"cachedContentTokenCount":196608,"candidatesTokenCount":512,\
"thoughtsTokenCount":1488,"totalTokenCount":242000},"modelVersion":"gemini-2.5-pro"}

"""
GEMINI_SHORT = """data: {"candidates":\
[{"content":{"parts":[{"text":"ok"}]},"finishReason":"STOP","index":0}],\
"usageMetadata":{"promptTokenCount":200000,"candidatesTokenCount":100,"totalTokenCount":200100}}

"""
TINY = """data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}

data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4}}

data: [DONE]

"""
MODELS = (
    GrantedModel(name="opus", provider="anthropic", upstream_model="claude-opus-5-5"),
    GrantedModel(name="gpt", provider="openai", upstream_model="gpt-5"),
    GrantedModel(name="pro", provider="gemini", upstream_model="gemini-2.5-pro"),
    GrantedModel(name="resold", provider="openrouter", upstream_model="openai/gpt-5"),
)
MESSAGES_CALL = ("/v1/messages", {"model": "opus", "max_tokens": 9000, "stream": True, "messages": []})
RESPONSES_CALL = ("/v1/responses", {"model": "gpt", "max_output_tokens": 9000, "stream": True, "input": []})
CHAT_CALL = (
    "/v1/chat/completions",
    {
        "model": "gpt", "max_tokens": 9000, "stream": True, "messages": [],
        "stream_options": {"include_usage": True},
    },
)  # fmt: skip
GEMINI_CALL = ("/v1beta/models/pro:streamGenerateContent?alt=sse", {"contents": []})
RESOLD_CALL = (CHAT_CALL[0], {**CHAT_CALL[1], "model": "resold"})


def price(**members: Any) -> ModelPrice:
    if "rates" not in members:
        members = {"rates": members}
    return ModelPrice(provider="p", model="m", version="by hand", max_output_tokens=9000, **members)


async def cost_of(
    door: Door, monkeypatch: pytest.MonkeyPatch, call: tuple[str, dict[str, Any]], at: ModelPrice, stream: str
) -> int | None:
    """What one call comes to in the ledger when its answer arrives in pieces of 11 bytes."""

    async def stated(_model: GrantedModel) -> ModelPrice:
        return at

    monkeypatch.setattr(door.gateway.catalog, "price", stated)
    text = stream.encode()
    door.provider.reply = Reply([text[at : at + 11] for at in range(0, len(text), 11)], headers=SSE)
    key = await door.mint(models=MODELS)
    path, body = call
    status, received, _ = await door.post(path, body, key="", authorization=f"Bearer {key}")
    assert (status, received) == (200, text)
    [row] = await ended(door, key)
    assert row.status == "measured"
    return row.cost_nanos


@pytest.mark.parametrize(
    ("call", "at", "stream", "cost"),
    [
        # 2,095 × 5,000 + 110,432 read × 500 + 8,192 for 5 min × 6,250 + 4,096 for 1 h × 10,000
        # + 1,417 out × 25,000 = 10,475,000 + 55,216,000 + 51,200,000 + 40,960,000 + 35,425,000
        (MESSAGES_CALL, price(**OPUS), ANTHROPIC, 193_276_000),
        # 3,155 × 1,250 + 45,056 cached × 125 + 2,913 out (2,304 of them reasoning) × 10,000
        # = 3,943,750 + 5,632,000 + 29,130,000
        (RESPONSES_CALL, price(**GPT), RESPONSES, 38_705_750),
        # 1,024 × 1,250 + 9,216 cached × 125 + 1,111 out × 10,000 = 1,280,000 + 1,152,000 + 11,110,000
        (CHAT_CALL, price(**GPT), CHAT, 13_542_000),
        # The same with reasoning at $12: 1,280,000 + 1,152,000 + 87 × 10,000 + 1,024 × 12,000
        (CHAT_CALL, price(**GPT, reasoning=12_000_000_000), CHAT, 15_590_000),
        # Above 200,000: 43,392 × 2,500 + 196,608 cached × 250 + 2,000 out × 15,000
        # = 108,480,000 + 49,152,000 + 30,000,000
        (GEMINI_CALL, price(**PRO), GEMINI, 187_632_000),
        # At 200,000 and not above: 200,000 × 1,250 + 100 × 10,000
        (GEMINI_CALL, price(**PRO), GEMINI_SHORT, 251_000_000),
        # 3 × 37.5 + 1 × 150 = 262.5, and a part of a nano-dollar counts as a whole one
        (CHAT_CALL, price(input=37_500_000, output=150_000_000), TINY, 263),
    ],
    ids=["anthropic caches", "responses", "chat", "reasoning", "gemini long", "gemini short", "rounded up"],
)
async def test_a_stream_costs_what_it_does_by_hand(
    door: Door, monkeypatch: pytest.MonkeyPatch, call: Any, at: ModelPrice, stream: str, cost: int
) -> None:
    assert await cost_of(door, monkeypatch, call, at, stream) == cost


TIERED = price(
    rates={"input": 2_000_000_000, "output": 10_000_000_000},
    services={
        "flex": {"rates": {"input": 1_000_000_000, "output": 5_000_000_000}},
        "priority": {"rates": {"input": 4_000_000_000, "output": 20_000_000_000}},
    },
)
# Of 100 tokens in and 10 out.
STANDARD, FLEX, PRIORITY = 300_000, 150_000, 600_000


@pytest.mark.parametrize(
    ("asked", "given", "cost"),
    [
        ("priority", "default", STANDARD),
        ("flex", "default", STANDARD),
        (None, "flex", FLEX),
        (None, "priority", PRIORITY),
        ("flex", "priority", PRIORITY),
        ("priority", "flex", FLEX),
        ("priority", "priority", PRIORITY),
        ("auto", "default", STANDARD),
        ("flex", None, FLEX),
        # Nobody knows what that costs; what was asked for is what is known.
        ("flex", "scale", FLEX),
    ],
)
@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_the_service_that_was_given_is_what_is_billed(
    door: Door,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
    asked: str | None,
    given: str | None,
    cost: int,
) -> None:
    told = {} if given is None else {"service_tier": given}
    if protocol == "chat":
        path, body = CHAT_CALL
        document: dict[str, Any] = {"usage": {"prompt_tokens": 100, "completion_tokens": 10}, "choices": []}
        document |= told
    else:
        path, body = RESPONSES_CALL
        usage = {"input_tokens": 100, "output_tokens": 10}
        document = {"type": "response.completed", "response": {"usage": usage, **told}}
    call = (path, body if asked is None else {**body, "service_tier": asked})
    stream = f"data: {json.dumps(document)}\n\n"
    assert await cost_of(door, monkeypatch, call, TIERED, stream) == cost


@pytest.mark.parametrize(
    ("told", "cost"),
    [
        ({"cost": 0.0005}, 500_000),
        # All is charged by the reseller; what its provider had of it is told beside.
        ({"cost": 0.0005, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.0005}}, 500_000),
        # An own key at its provider: that one bills too.
        ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.0004}}, 400_000),
        ({"cost": 0.00002, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.0004}}, 420_000),
        ({"cost": 0, "cost_details": {"upstream_inference_cost": 0.0004}}, 400_000),
        # Nothing is no price: our own.
        ({"cost": 0}, STANDARD),
        ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0}}, STANDARD),
        ({"cost": 0, "is_byok": True, "cost_details": {"upstream_inference_cost": None}}, STANDARD),
        ({}, STANDARD),
    ],
)
async def test_a_reseller_s_figure_is_all_that_is_charged_and_never_nothing(
    door: Door, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], cost: int
) -> None:
    document = {"choices": [], "usage": {"prompt_tokens": 100, "completion_tokens": 10, **told}}
    stream = f"data: {json.dumps(document)}\n\n"
    assert await cost_of(door, monkeypatch, RESOLD_CALL, TIERED, stream) == cost


@pytest.mark.parametrize(
    ("call", "stream", "n_warnings"),
    [
        (RESPONSES_CALL, RESPONSES, 0),  # a date more
        (RESPONSES_CALL, RESPONSES.replace("gpt-5-2025-08-07", "gpt-4o-mini"), 1),
        (CHAT_CALL, CHAT.replace("gpt-5-2025-08-07", "o3"), 1),
        (MESSAGES_CALL, ANTHROPIC, 0),
        (MESSAGES_CALL, ANTHROPIC.replace("claude-opus-5-5", "claude-haiku-4-5"), 1),
        (GEMINI_CALL, GEMINI, 0),
        (GEMINI_CALL, GEMINI.replace("gemini-2.5-pro", "gemini-2.5-flash"), 1),
        (RESOLD_CALL, CHAT, 0),  # without its owner
    ],
)
async def test_an_answer_of_another_model_is_told_once_a_call(
    door: Door, monkeypatch: pytest.MonkeyPatch, call: Any, stream: str, n_warnings: int
) -> None:
    with structlog.testing.capture_logs() as lines:
        await cost_of(door, monkeypatch, call, TIERED, stream)
    assert [line["event"] for line in lines].count("another model answered") == n_warnings
