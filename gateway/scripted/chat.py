"""A scripted answer in OpenAI's Chat Completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from domain.usage import CallUsage
from gateway.scripted.answer import CREATED, Answer, event, pieces


def stream(answer: Answer, *, tells_usage: bool) -> Iterator[bytes]:
    """The events; a usage only where it was asked for, as the real ones do."""
    yield _chunk(answer, {"role": "assistant", "content": ""})
    for piece in pieces(answer.thinking) if answer.thinking else ():
        yield _chunk(answer, {"reasoning_content": piece})
    for piece in pieces(answer.text) if answer.text else ():
        yield _chunk(answer, {"content": piece})
    for index, call in enumerate(answer.calls):
        function = {"name": call.name, "arguments": ""}
        head = {"index": index, "id": call.call_id, "type": "function", "function": function}
        yield _chunk(answer, {"tool_calls": [head]})
        yield _chunk(
            answer, {"tool_calls": [{"index": index, "function": {"arguments": call.arguments_text}}]}
        )
    yield _chunk(answer, {}, finish=_finish(answer))
    if tells_usage and answer.usage is not None:
        yield event({**_head(answer, "chat.completion.chunk"), "choices": [], "usage": _usage(answer.usage)})
    yield b"data: [DONE]\n\n"


def whole(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.thinking:
        message["reasoning_content"] = answer.thinking
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments_text},
            }
            for call in answer.calls
        ]
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    document = {**_head(answer, "chat.completion"), "choices": [choice]}
    return document if answer.usage is None else {**document, "usage": _usage(answer.usage)}


def failure(message: str) -> bytes:
    return event({"error": {"message": message, "type": "server_error", "param": None, "code": None}})


def _chunk(answer: Answer, delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return event({**_head(answer, "chat.completion.chunk"), "choices": [choice]})


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer.answer_id}",
        "object": kind,
        "created": CREATED,
        "model": answer.model,
    }


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _usage(usage: CallUsage) -> dict[str, Any]:
    """Chat has one word for writes to a cache, so those that live an hour are told as the others."""
    prompt_details = {"cached_tokens": usage.cached_input_tokens}
    if usage.cache_write_tokens:
        prompt_details["cache_write_tokens"] = usage.cache_write_tokens
    numbers: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": prompt_details,
    }
    if usage.reasoning_tokens is not None:
        numbers["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    return numbers
