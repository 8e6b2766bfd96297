"""A scripted answer in OpenAI's Responses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from domain.usage import CallUsage
from gateway.scripted.answer import CREATED, Answer, event, pieces

Item = dict[str, Any]


def stream(answer: Answer) -> Iterator[bytes]:
    """The events, each with its number."""
    for number, (kind, members) in enumerate(_events(answer)):
        yield event({"type": kind, "sequence_number": number, **members}, kind)


def whole(answer: Answer) -> dict[str, Any]:
    return {**_response(answer, "completed"), "output": _items(answer), "usage": _usage(answer.usage)}


def failure(message: str) -> bytes:
    response = {
        "object": "response",
        "status": "failed",
        "error": {"code": "server_error", "message": message},
        "usage": None,
    }
    return event({"type": "response.failed", "response": response}, "response.failed")


def _events(answer: Answer) -> Iterator[tuple[str, dict[str, Any]]]:
    begun: Item = {**_response(answer, "in_progress"), "output": [], "usage": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for index, item in enumerate(_items(answer)):
        if item["type"] == "reasoning":
            yield from _reasoning_events(index, item)
        elif item["type"] == "message":
            yield from _message_events(index, item)
        else:
            yield from _call_events(index, item)
    yield "response.completed", {"response": whole(answer)}


def _reasoning_events(index: int, item: Item) -> Iterator[tuple[str, dict[str, Any]]]:
    at = {"item_id": item["id"], "output_index": index, "summary_index": 0}
    part = item["summary"][0]
    yield "response.output_item.added", {"output_index": index, "item": {**item, "summary": []}}
    yield "response.reasoning_summary_part.added", {**at, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield "response.reasoning_summary_text.delta", {**at, "delta": piece}
    yield "response.reasoning_summary_text.done", {**at, "text": part["text"]}
    yield "response.reasoning_summary_part.done", {**at, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _message_events(index: int, item: Item) -> Iterator[tuple[str, dict[str, Any]]]:
    at = {"item_id": item["id"], "output_index": index, "content_index": 0}
    part = item["content"][0]
    begun: Item = {**item, "status": "in_progress", "content": []}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield "response.output_text.delta", {**at, "delta": piece, "logprobs": []}
    yield "response.output_text.done", {**at, "text": part["text"], "logprobs": []}
    yield "response.content_part.done", {**at, "part": part}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _call_events(index: int, item: Item) -> Iterator[tuple[str, dict[str, Any]]]:
    at = {"item_id": item["id"], "output_index": index}
    begun: Item = {**item, "status": "in_progress", "arguments": ""}
    yield "response.output_item.added", {"output_index": index, "item": begun}
    yield "response.function_call_arguments.delta", {**at, "delta": item["arguments"]}
    yield "response.function_call_arguments.done", {**at, "arguments": item["arguments"]}
    yield "response.output_item.done", {"output_index": index, "item": item}


def _items(answer: Answer) -> list[Item]:
    items: list[Item] = []
    if answer.thinking:
        summary = [{"type": "summary_text", "text": answer.thinking}]
        items.append({"id": f"rs_{answer.answer_id}", "type": "reasoning", "summary": summary})
    if answer.text:
        part: Item = {"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "id": f"msg_{answer.answer_id}",
                "type": "message",
                "status": "completed",
                "role": "assistant",
                "content": [part],
            }
        )
    for call in answer.calls:
        item: Item = {
            "id": f"fc_{call.call_id}",
            "type": "function_call",
            "status": "completed",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments_text,
        }
        items.append(item if call.namespace is None else {**item, "namespace": call.namespace})
    return items


def _response(answer: Answer, status: str) -> dict[str, Any]:
    return {
        "id": f"resp_{answer.answer_id}",
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": answer.model,
        "parallel_tool_calls": True,
    }


def _usage(usage: CallUsage | None) -> dict[str, Any] | None:
    if usage is None:
        return None
    details = {"cached_tokens": usage.cached_input_tokens}
    if usage.cache_write_tokens:
        details["cache_write_tokens"] = usage.cache_write_tokens
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": details,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }
