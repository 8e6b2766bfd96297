"""A scripted answer in Gemini's generateContent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from domain.usage import CallUsage
from gateway.scripted.answer import Answer, event, pieces


def documents(answer: Answer) -> Iterator[dict[str, Any]]:
    """The answer piece by piece; the last one says why it ended, and tells the usage."""
    for piece in pieces(answer.thinking) if answer.thinking else ():
        yield _document(answer, [{"text": piece, "thought": True}])
    for piece in pieces(answer.text) if answer.text else ():
        yield _document(answer, [{"text": piece}])
    yield _document(answer, _calls(answer) or [{"text": ""}], is_last=True)


def stream(answer: Answer) -> Iterator[bytes]:
    for document in documents(answer):
        yield event(document)


def array(answer: Answer) -> Iterator[bytes]:
    """As it is streamed to who does not ask for events."""
    mark = b"["
    for document in documents(answer):
        # An event without its frame.
        yield mark + event(document)[6:-2]
        mark = b",\r\n"
    yield b"]"


def whole(answer: Answer) -> dict[str, Any]:
    parts: list[dict[str, Any]] = []
    if answer.thinking:
        parts.append({"text": answer.thinking, "thought": True})
    if answer.text:
        parts.append({"text": answer.text})
    return _document(answer, parts + _calls(answer), is_last=True)


def failure(message: str) -> bytes:
    return event({"error": {"code": 503, "message": message, "status": "UNAVAILABLE"}})


def _document(answer: Answer, parts: list[dict[str, Any]], *, is_last: bool = False) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": 0}
    if is_last:
        candidate["finishReason"] = "STOP"
    document: dict[str, Any] = {"candidates": [candidate]}
    if is_last and answer.usage is not None:
        document["usageMetadata"] = _usage(answer.usage)
    return {**document, "modelVersion": answer.model, "responseId": answer.answer_id}


def _calls(answer: Answer) -> list[dict[str, Any]]:
    return [
        {"functionCall": {"id": call.call_id, "name": call.name, "args": call.arguments}}
        for call in answer.calls
    ]


def _usage(usage: CallUsage) -> dict[str, Any]:
    """Gemini writes to no cache that it bills by the token: such tokens are told as ordinary input."""
    thoughts = usage.reasoning_tokens or 0
    numbers = {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.output_tokens - thoughts,
        "totalTokenCount": usage.prompt_tokens + usage.output_tokens,
    }
    if usage.cached_input_tokens:
        numbers["cachedContentTokenCount"] = usage.cached_input_tokens
    return numbers if usage.reasoning_tokens is None else {**numbers, "thoughtsTokenCount": thoughts}
