"""Each protocol's own usage numbers, made one shape. Pure.

Sources: facts/gateway.md section 5. Every function raises `BadUsage` for numbers that cannot be right, so
that a call is booked at its hold instead of at a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from domain.usage import CallUsage
from gateway.protocols import Dialect

Numbers = Mapping[str, Any]
# More than any call can use; two of them still fit the ledger's columns.
MAX_COUNT = 1_000_000_000


class BadUsage(ValueError):
    """Usage numbers that are absent, beyond all reason, or that contradict each other."""


def usage_of(dialect: Dialect, numbers: Numbers) -> CallUsage:
    """What the provider says that it used. Raises `BadUsage`."""
    return _READERS[dialect](numbers)


def _chat(numbers: Numbers) -> CallUsage:
    """`completion_tokens` include reasoning, but for servers that count it only in the total."""
    prompt = _count(numbers, "prompt_tokens")
    details = _part(numbers, "prompt_tokens_details")
    cached = _optional(details, "cached_tokens") or _optional(numbers, "cached_tokens")
    written = _optional(details, "cache_write_tokens")
    output = _optional(numbers, "completion_tokens")
    return _usage(
        {"input_tokens": prompt - cached - written, "cached_input_tokens": cached},
        {"cache_write_5m_tokens": written},
        output=max(output, _optional(numbers, "total_tokens") - prompt),
        reasoning=_maybe(_part(numbers, "completion_tokens_details"), "reasoning_tokens"),
    )


def _responses(numbers: Numbers) -> CallUsage:
    details = _part(numbers, "input_tokens_details")
    cached, written = _optional(details, "cached_tokens"), _optional(details, "cache_write_tokens")
    return _usage(
        {"input_tokens": _count(numbers, "input_tokens") - cached - written, "cached_input_tokens": cached},
        {"cache_write_5m_tokens": written},
        output=_count(numbers, "output_tokens"),
        reasoning=_maybe(_part(numbers, "output_tokens_details"), "reasoning_tokens"),
    )


def _messages(numbers: Numbers) -> CallUsage:
    """`input_tokens` are those that no cache had; writes are told apart by how long they live."""
    written = _optional(numbers, "cache_creation_input_tokens")
    for_an_hour = _optional(_part(numbers, "cache_creation"), "ephemeral_1h_input_tokens")
    return _usage(
        {
            "input_tokens": _count(numbers, "input_tokens"),
            "cached_input_tokens": _optional(numbers, "cache_read_input_tokens"),
        },
        {
            "cache_write_5m_tokens": max(0, written - for_an_hour),
            "cache_write_1h_tokens": for_an_hour,
        },
        output=_count(numbers, "output_tokens"),
        reasoning=None,  # within the output, and not told apart
    )


def _gemini(numbers: Numbers) -> CallUsage:
    """Some models count thoughts among the candidates and some beside: the total tells."""
    prompt = _count(numbers, "promptTokenCount")
    tools = _optional(numbers, "toolUsePromptTokenCount")
    cached = _optional(numbers, "cachedContentTokenCount")
    candidates, thoughts = _optional(numbers, "candidatesTokenCount"), _maybe(numbers, "thoughtsTokenCount")
    total = _maybe(numbers, "totalTokenCount")
    output = candidates + (thoughts or 0) if total is None else max(candidates, total - prompt - tools)
    return _usage(
        {"input_tokens": prompt + tools - cached, "cached_input_tokens": cached},
        {},
        output=output,
        reasoning=thoughts,
    )


def _embeddings(numbers: Numbers) -> CallUsage:
    return _usage({"input_tokens": _count(numbers, "prompt_tokens")}, {}, output=0, reasoning=None)


_READERS: Mapping[Dialect, Callable[[Numbers], CallUsage]] = {
    "chat": _chat,
    "responses": _responses,
    "messages": _messages,
    "gemini": _gemini,
    "embeddings": _embeddings,
}


def _usage(
    prompt: dict[str, int], written: dict[str, int], *, output: int, reasoning: int | None
) -> CallUsage:
    counts = {**prompt, **written, "output_tokens": output}
    if min(counts.values()) < 0:
        raise BadUsage("more tokens cached than there were")
    return CallUsage(**counts, reasoning_tokens=reasoning)


def _part(numbers: Numbers, name: str) -> Numbers:
    part = numbers.get(name)
    return cast(Numbers, part) if isinstance(part, Mapping) else {}


def _maybe(numbers: Numbers, name: str) -> int | None:
    value = numbers.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise BadUsage(f"{name} is no count")
    return value


def _optional(numbers: Numbers, name: str) -> int:
    return _maybe(numbers, name) or 0


def _count(numbers: Numbers, name: str) -> int:
    value = _maybe(numbers, name)
    if value is None:
        raise BadUsage(f"no {name}")
    return value
