"""The offline upstream: scripts that answer in each protocol, behind the same door as real providers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from domain.prices import cost_nanos
from domain.usage import CallUsage
from gateway.scripted.conversation import read_conversation
from gateway.scripted.script import BadScript, load_scripts
from store.database import Database
from store.keys import GrantedModel
from tests.gateway.conftest import Door, ended, opened_door
from tests.gateway.fake_provider import FakeProvider

SCRIPTS = """
models:
  hello:
    prices: {input: 3, output: 15, cached_input: 0.3, cache_write_5m: 3.75, cache_write_1h: 6}
    turns:
      - thinking: Let me think.
        text: I will make the file.
        shell: echo hello > hello.txt
        usage: {input_tokens: 1000, cached_input_tokens: 200, output_tokens: 50, reasoning_tokens: 10}
      - text: Done now.
        usage: {input_tokens: 1100, cached_input_tokens: 900, cache_write_1h_tokens: 7, output_tokens: 9}
  broken:
    turns:
      - {error: {status: 429, retry_after_sec: 3, times: 1}, text: After all.}
      - {text: one two three four, cut_after_chunks: 3}
      - {text: one two three four, fail_after_chunks: 3}
      - {text: No figures., usage: missing}
      - {error: {status: 402, body: {error: {message: spent}}}}
  by-task:
    cases:
      - {contains: csv, turns: [{text: A table.}]}
    turns: [{text: Something else., repeat: 2}]
"""
SHELLS: dict[str, Any] = {
    "messages": {"name": "Bash", "input_schema": {"properties": {"command": {"type": "string"}}}},
    "chat": {
        "type": "function",
        "function": {
            "name": "run_shell_command",
            "parameters": {
                "properties": {
                    "command": {"type": "string"},
                    "is_background": {"type": "boolean"},
                    "risk": {"type": "string", "enum": ["low", "high"]},
                },
                "required": ["command", "is_background", "risk"],
            },
        },
    },
    "responses": {
        "type": "function", "name": "exec_command", "parameters": {"properties": {"cmd": {"type": "string"}}},
    },
    "gemini": {
        "functionDeclarations": [
            {"name": "run_shell_command", "parametersJsonSchema": {"properties": {"command": {}}}}
        ]
    },
}  # fmt: skip


def request(dialect: str, model: str, *, n_turns: int = 0, is_stream: bool = True) -> tuple[str, Any]:
    """A harness's request after so many turns of the model."""
    tools = [SHELLS[dialect]]
    said = [("user", "Make hello.txt")]
    for number in range(n_turns):
        said += [("assistant", f"turn {number}"), ("user", "go on")]
    messages = [{"role": role, "content": text} for role, text in said]
    if dialect == "gemini":
        contents = [
            {"role": "model" if role == "assistant" else role, "parts": [{"text": text}]}
            for role, text in said
        ]
        verb = "streamGenerateContent?alt=sse" if is_stream else "generateContent"
        return f"/v1beta/models/{model}:{verb}", {"contents": contents, "tools": tools}
    body: dict[str, Any] = {"model": model, "stream": is_stream, "tools": tools}
    if dialect == "responses":
        return "/v1/responses", {**body, "input": messages, "instructions": "be good"}
    if dialect == "messages":
        return "/v1/messages", {**body, "messages": messages, "max_tokens": 100}
    return "/v1/chat/completions", {**body, "messages": messages, "stream_options": {"include_usage": True}}


@pytest.fixture
async def scripted(db: Database, provider: FakeProvider, write_scripts: Callable[[str], Path]):
    names = ("hello", "broken", "by-task")
    models = tuple(GrantedModel(name=name, provider="scripted", upstream_model=name) for name in names)
    async with opened_door(db, provider, write_scripts(SCRIPTS)) as door:
        await door.mint(models=models)
        yield door


def told(dialect: str, received: bytes, *, is_stream: bool) -> str:
    """All that the answer says, its frames' documents one after the other."""
    if not is_stream:
        return json.dumps(json.loads(received))
    lines = [line[6:] for line in received.decode().splitlines() if line.startswith("data: {")]
    return "".join(json.dumps(json.loads(line)) for line in lines)


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("dialect", SHELLS)
async def test_a_script_is_played_in_each_protocol_and_billed_what_it_says(
    scripted: Door, dialect: str, is_stream: bool
) -> None:
    for n_turns in (0, 1):
        path, body = request(dialect, "hello", n_turns=n_turns, is_stream=is_stream)
        status, received, _ = await scripted.post(path, body)
        assert status == 200
        said = told(dialect, received, is_stream=is_stream)
        if n_turns == 0:
            assert "think" in said
            assert "echo hello > hello.txt" in said.replace("\\\\", "\\")
        else:
            assert "Done" in said
            assert "echo hello" not in said
    first, second = await scripted.calls()
    price = scripted.gateway.catalog.scripted_prices["hello"]
    reasoning = None if dialect == "messages" else 10
    assert first.usage == CallUsage(
        input_tokens=1000, cached_input_tokens=200, output_tokens=50, reasoning_tokens=reasoning
    )
    assert (first.status, second.status) == ("measured", "measured")
    assert first.usage is not None
    assert first.cost_nanos == cost_nanos(price, first.usage) == 3_810_000
    assert second.usage is not None
    assert second.usage.prompt_tokens == 2007
    if dialect == "messages":
        assert second.usage.cache_write_1h_tokens == 7


async def test_the_shell_tool_that_is_offered_gets_all_that_it_requires(scripted: Door) -> None:
    path, body = request("chat", "hello", is_stream=False)
    document = json.loads((await scripted.post(path, body))[1])
    function = document["choices"][0]["message"]["tool_calls"][0]["function"]
    assert function["name"] == "run_shell_command"
    assert json.loads(function["arguments"]) == {
        "command": "echo hello > hello.txt",
        "is_background": False,
        "risk": "low",
    }
    assert document["choices"][0]["finish_reason"] == "tool_calls"


async def test_a_request_without_tools_gets_words_only(scripted: Door) -> None:
    path, body = request("messages", "hello", is_stream=False)
    document = json.loads((await scripted.post(path, {**body, "tools": []}))[1])
    assert [block["type"] for block in document["content"]] == ["thinking", "text"]
    assert document["stop_reason"] == "end_turn"


async def test_errors_cuts_and_failures_are_as_scripted(scripted: Door) -> None:
    path, body = request("messages", "broken")
    status, received, answer = await scripted.post(path, body)
    assert (status, answer.headers["retry-after"]) == (429, "3")
    assert json.loads(received)["error"]["type"] == "rate_limit_error"
    assert (await scripted.post(path, body))[0] == 200
    with pytest.raises(aiohttp.ClientPayloadError):
        await scripted.post(*request("messages", "broken", n_turns=1))
    status, received, _ = await scripted.post(*request("messages", "broken", n_turns=2))
    assert b"event: error" in received
    await scripted.post(*request("messages", "broken", n_turns=3))
    status, received, _ = await scripted.post(*request("messages", "broken", n_turns=4))
    assert (status, json.loads(received)) == (402, {"error": {"message": "spent"}})
    assert [(call.status, call.error_kind) for call in await ended(scripted)] == [
        ("refused_upstream", "http_429"),
        ("measured", None),
        ("held", "cut"),
        ("held", "overloaded_error"),
        ("held", "usage_missing"),
        ("refused_upstream", "http_402"),
    ]


@pytest.mark.parametrize(
    ("model", "said", "n_turns", "answer"),
    [
        ("by-task", "clean the csv", 0, "A table."),
        ("by-task", "clean the csv", 1, "The script is over."),
        ("by-task", "else", 0, "Something else."),
        ("by-task", "else", 1, "Something else."),
        ("by-task", "else", 2, "The script is over."),
    ],
)
def test_a_script_is_chosen_by_what_the_user_says(
    write_scripts: Callable[[str], Path], model: str, said: str, n_turns: int, answer: str
) -> None:
    turn = load_scripts(write_scripts(SCRIPTS))[model].turn(said, n_turns)
    assert (turn.text if turn else "The script is over.") == answer


def test_turns_are_counted_as_the_model_had_them() -> None:
    body = {
        "input": [
            {"type": "message", "role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "make it"}]},
            {"type": "reasoning", "summary": []},
            {"type": "message", "role": "assistant", "content": []},
            {"type": "function_call", "call_id": "1"},
            {"type": "function_call", "call_id": "2"},
            {"type": "function_call_output", "call_id": "1"},
            {"type": "function_call_output", "call_id": "2"},
            {"type": "function_call", "call_id": "3"},
            {"type": "function_call_output", "call_id": "3"},
        ]
    }
    conversation = read_conversation("responses", body)
    assert (conversation.n_turns, conversation.said) == (2, "make it")


def test_what_a_harness_puts_into_the_models_mouth_is_no_turn_of_its() -> None:
    opening = {"role": "assistant", "content": "Got it. Thanks for the context!"}
    messages = [{"role": "user", "content": "context"}, opening, {"role": "user", "content": "make it"}]
    assert read_conversation("chat", {"messages": messages}).n_turns == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("models: {x: {turns: [{txt: hi}]}}", "models.x.turns.0.txt"),
        ("models: {x: {}}", "models.x"),
        ("models: [", "no YAML"),
        ("models: {x: {turns: [{text: hi}], prices: {input: 0}}}", "prices.input"),
    ],
)
def test_a_script_that_cannot_be_used_is_refused_by_name(
    write_scripts: Callable[[str], Path], text: str, named: str
) -> None:
    with pytest.raises(BadScript, match=named.replace(".", r"\.")):
        load_scripts(write_scripts(text))


async def test_embeddings_are_answered_and_billed(scripted: Door) -> None:
    body = {"model": "hello", "input": ["one two", "three"]}
    status, received, _ = await scripted.post("/v1/embeddings", body)
    assert (status, len(json.loads(received)["data"])) == (200, 2)
    assert (await scripted.calls())[0].usage == CallUsage(input_tokens=3)
