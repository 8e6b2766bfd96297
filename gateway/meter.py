"""The meter: it sees every byte that an upstream answers, and knows what the call used.

A stream's lines are looked at only when they hold a mark of usage or of an error, so that what passes
through costs next to nothing. Quotes within JSON strings are escaped, so no text of a model can look like
a mark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from domain.usage import CallUsage
from gateway.operator_faults import fault_told
from gateway.protocols import Dialect
from gateway.provider_usage import BadUsage, usage_of

_MARKS: Mapping[Dialect, re.Pattern[bytes]] = {
    "chat": re.compile(rb'"usage"\s*:\s*\{|"error"\s*:\s*\{'),
    "responses": re.compile(rb'"type"\s*:\s*"(?:response\.(?:completed|incomplete|failed)|error)"'),
    "messages": re.compile(rb'"type"\s*:\s*"(?:message_start|message_delta|error)"'),
    "gemini": re.compile(rb'"usageMetadata"|"error"\s*:\s*\{'),
    "embeddings": re.compile(rb"(?!)"),
}
# The longest answer that is kept to read its usage when it is not a stream.
MAX_WHOLE_BYTES = 64 * 1024 * 1024
_MAX_LINE_BYTES = 16 * 1024 * 1024
# A reseller's figure beyond this is none; nor is one below 0, or one that is no number.
MAX_COST_USD = 1_000_000.0
_MAX_NAME = 200


class Meter:
    """Fed with an answer's bytes in order."""

    def __init__(self, dialect: Dialect) -> None:
        self.is_stream = False
        """Whether they are server-sent events, else one JSON document."""
        self._dialect: Dialect = dialect
        self._mark = _MARKS[dialect]
        self._rest = bytearray()
        self._numbers: dict[str, Any] = {}
        self._is_final = False
        self._is_lost = False
        self.error_kind: str | None = None
        """The upstream's own word for what went wrong within an answer that began well."""
        self.reported_usd: float | None = None
        """What a reseller says that it charges, with what its own provider charges to a key of ours."""
        self.model: str | None = None
        """The model that answered, by the provider's word."""
        self.service: str | None = None
        """The service tier that was given, by the provider's word."""

    def feed(self, chunk: bytes) -> None:
        if not self.is_stream:
            self._keep(chunk, MAX_WHOLE_BYTES)
            return
        end = chunk.rfind(b"\n")
        if end < 0:
            self._keep(chunk, _MAX_LINE_BYTES)
            return
        lines = self._rest + chunk[: end + 1] if self._rest else chunk[: end + 1]
        self._rest = bytearray(chunk[end + 1 :])
        if self._mark.search(lines) is not None:
            self._read_lines(lines)

    def usage(self, *, is_cut: bool) -> CallUsage | None:
        """What the call used; None when the provider did not say, or said it before it was over.

        `is_cut`: the answer broke off. Then only a usage that nothing can follow counts.
        """
        if not self.is_stream and not is_cut:
            self._read_whole()
        elif self.is_stream and self._rest:
            self._read_lines(self._rest)
            self._rest.clear()
        # Of these two a provider may tell a usage so far with each chunk; of a whole stream the last counts.
        is_whole = not is_cut and self.error_kind is None and self._dialect in ("chat", "gemini")
        is_over = self._is_final or (self.is_stream and is_whole)
        if not is_over or not self._numbers or self._is_lost:
            return None
        try:
            return usage_of(self._dialect, self._numbers)
        except BadUsage:
            return None

    def _keep(self, chunk: bytes, limit: int) -> None:
        if len(self._rest) + len(chunk) > limit:
            self._rest, self._is_lost = bytearray(), True
        elif not self._is_lost:
            self._rest += chunk

    def _read_lines(self, lines: bytes | bytearray) -> None:
        for line in lines.splitlines():
            if line.startswith(b"data:") and self._mark.search(line) is not None:
                self._read_event(_object(line[5:]))

    def _read_whole(self) -> None:
        """A document; Gemini streams an array of them when it is not asked for events."""
        try:
            document = json.loads(self._rest)
        except ValueError:
            return
        parts = cast(list[Any], document) if isinstance(document, list) else [document]
        for part in parts:
            if isinstance(part, dict):
                self._read_part(cast(dict[str, Any], part))
        self._is_final = bool(self._numbers)

    def _read_part(self, part: dict[str, Any]) -> None:
        self._overlay(part.get("usageMetadata" if self._dialect == "gemini" else "usage"))
        self._note_names(part)
        if part.get("error"):
            self._note_error(part["error"])

    def _read_event(self, event: dict[str, Any]) -> None:
        kind = event.get("type")
        if self._dialect == "messages" and kind == "message_start":
            self._overlay(_member(event, "message").get("usage"))
            self._note_names(_member(event, "message"))
        elif self._dialect == "messages" and kind == "message_delta":
            self._overlay(event.get("usage"))
            self._is_final = bool(event.get("usage"))
        elif self._dialect == "responses" and kind != "error":
            self._read_response(_member(event, "response"))
        elif event.get("error"):
            self._note_error(event["error"])
        elif kind == "error":  # Responses: code and message beside the type
            self._note_error(event)
        elif self._dialect == "gemini":
            self._overlay(event.get("usageMetadata"))
            self._note_names(event)
            self._is_final = _has_finish(event, "candidates", "finishReason")
        else:
            self._overlay(event.get("usage"))
            self._note_names(event)
            self._is_final = _has_finish(event, "choices", "finish_reason")

    def _read_response(self, response: dict[str, Any]) -> None:
        self._overlay(response.get("usage"))
        self._note_names(response)
        self._is_final = bool(response.get("usage"))
        if response.get("error"):
            self._note_error(response["error"])

    def _overlay(self, numbers: Any) -> None:
        """Later numbers win; what they leave out stays (Anthropic's later deltas may omit the caches)."""
        if not isinstance(numbers, dict):
            return
        told = cast(dict[str, Any], numbers)
        self._numbers |= {name: value for name, value in told.items() if value is not None}
        self.reported_usd = self.reported_usd if (cost := _charged(told)) is None else cost
        self._note_names(told)

    def _note_names(self, told: dict[str, Any]) -> None:
        service = told.get("service_tier")
        if isinstance(service, str):
            self.service = service[:_MAX_NAME]
        model = told.get("modelVersion" if self._dialect == "gemini" else "model")
        if isinstance(model, str) and model:
            self.model = model[:_MAX_NAME]

    def _note_error(self, error: Any) -> None:
        if (fault := fault_told(error)) is not None:
            self.error_kind = fault
            return
        words = cast(dict[str, Any], error) if isinstance(error, dict) else {}
        for name in ("type", "code", "status"):
            word = words.get(name)
            if isinstance(word, str) and word != "error" and word.isprintable():
                self.error_kind = word[:80]
                return
        self.error_kind = "error"


def _charged(usage: dict[str, Any]) -> float | None:
    """A reseller's charge. With an account's own key at the upstream provider it is only the fee, or 0, and
    that provider's charge comes on top; else it is all, and the upstream's share is told beside it."""
    cost = _usd(usage.get("cost"))
    upstream = _usd(_member(usage, "cost_details").get("upstream_inference_cost"))
    if cost is None or upstream is None:
        return cost
    is_own_key = usage.get("is_byok")
    return cost + upstream if is_own_key is True or (is_own_key is None and cost < upstream) else cost


def _usd(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= MAX_COST_USD else None


def _has_finish(event: dict[str, Any], parts: str, reason: str) -> bool:
    """Whether nothing of the answer follows: a part tells why it ended, or there is no part at all."""
    found = event.get(parts)
    if not isinstance(found, list) or not found:
        return parts == "choices" or bool(event.get("promptFeedback"))
    parts_found = (cast(dict[str, Any], part) for part in cast(list[Any], found) if isinstance(part, dict))
    return any(bool(part.get(reason)) for part in parts_found)


def _member(event: dict[str, Any], name: str) -> dict[str, Any]:
    value = event.get(name)
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _object(text: bytes | bytearray) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}
