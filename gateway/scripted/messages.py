"""A scripted answer in Anthropic's Messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from domain.usage import CallUsage
from gateway.scripted.answer import Answer, event, pieces

Block = dict[str, Any]


def stream(answer: Answer) -> Iterator[bytes]:
    """The events; the prompt's usage comes first and the output's last."""
    start: Block = {**_head(answer), "content": [], "stop_reason": None, "stop_sequence": None}
    if answer.usage is not None:
        start["usage"] = {**_prompt_usage(answer.usage), "output_tokens": 1}
    yield event({"type": "message_start", "message": start}, "message_start")
    yield event({"type": "ping"}, "ping")
    for index, (block, deltas) in enumerate(_blocks(answer)):
        yield _named("content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield _named("content_block_delta", index=index, delta=delta)
        yield _named("content_block_stop", index=index)
    delta = {"stop_reason": _stop(answer), "stop_sequence": None}
    usage = {} if answer.usage is None else {"usage": {"output_tokens": answer.usage.output_tokens}}
    yield _named("message_delta", delta=delta, **usage)
    yield _named("message_stop")


def whole(answer: Answer) -> dict[str, Any]:
    content: list[Block] = []
    if answer.thinking:
        content.append({"type": "thinking", "thinking": answer.thinking, "signature": _signature(answer)})
    if answer.text:
        content.append({"type": "text", "text": answer.text})
    content += [
        {"type": "tool_use", "id": call.call_id, "name": call.name, "input": call.arguments}
        for call in answer.calls
    ]
    document = {**_head(answer), "content": content, "stop_reason": _stop(answer), "stop_sequence": None}
    if answer.usage is not None:
        output = {"output_tokens": answer.usage.output_tokens}
        document["usage"] = {**_prompt_usage(answer.usage), **output}
    return document


def failure(message: str) -> bytes:
    return event({"type": "error", "error": {"type": "overloaded_error", "message": message}}, "error")


def _blocks(answer: Answer) -> Iterator[tuple[Block, list[Block]]]:
    if answer.thinking:
        deltas: list[Block] = [
            {"type": "thinking_delta", "thinking": piece} for piece in pieces(answer.thinking)
        ]
        deltas.append({"type": "signature_delta", "signature": _signature(answer)})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if answer.text:
        yield (
            {"type": "text", "text": ""},
            [{"type": "text_delta", "text": piece} for piece in pieces(answer.text)],
        )
    for call in answer.calls:
        block: Block = {"type": "tool_use", "id": call.call_id, "name": call.name, "input": {}}
        yield block, [{"type": "input_json_delta", "partial_json": call.arguments_text}]


def _named(kind: str, **members: Any) -> bytes:
    return event({"type": kind, **members}, kind)


def _head(answer: Answer) -> dict[str, Any]:
    return {
        "id": f"msg_{answer.answer_id}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
    }


def _signature(answer: Answer) -> str:
    return f"sig-{answer.answer_id}"


def _stop(answer: Answer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def _prompt_usage(usage: CallUsage) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_5m_tokens,
            "ephemeral_1h_input_tokens": usage.cache_write_1h_tokens,
        },
    }
