"""What every parser of a harness's stdout shares: events, the report, and how a line is read.

A parser is deterministic from the first byte of the stream and never raises: whoever follows on for a dead
worker feeds the whole stream again and gets the same events under the same numbers. The rule for lines:

- a JSON object of a kind the parser knows becomes events; of another kind it becomes none;
- text that is no JSON object is what the harness prints beside its stream: no event, its end is reported;
- a line that begins as an object and is none, or was too long to be read, becomes a `trace_loss`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol, cast

from activities.traces.failures import StreamError

STRAY_CHARS = 2_000
"""What is kept of text that a harness printed beside its stream."""
MAX_DEPTH = 100
"""Nesting of a line's values: what is deeper, no JSON library downstream need stand."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class TraceEvent:
    """One event of contract 4.4: its type and the `data` of its row."""

    type: str
    data: dict[str, Any]


@dataclass(frozen=True)
class ReportedUsage:
    """A harness's own count. `prompt_tokens` holds cached and cache-written ones, output its reasoning."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def __add__(self, other: ReportedUsage) -> ReportedUsage:
        return ReportedUsage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass
class StreamReport:
    """What a stream tells of its run as a whole. Exit codes lie: this is asked before them."""

    session_id: str | None = None
    model: str | None = None
    version: str | None = None
    final_text: str | None = None
    """The agent's last message."""
    error: StreamError | None = None
    """What ended the run, in the harness's words. A failure that it got over is not one."""
    usage: ReportedUsage | None = None
    has_ended: bool = False
    """Whether the stream's own last line was seen."""
    stray_text: str = ""
    """The end of what was printed beside the stream."""


class StreamParser(Protocol):
    """Reads one stream of one harness, from its start."""

    @property
    def report(self) -> StreamReport: ...

    def feed(self, line: bytes) -> list[TraceEvent]:
        """The events of one whole line, without its end."""
        ...

    def lost(self, reason: str, n_bytes: int) -> list[TraceEvent]:
        """A part of the stream that cannot be read."""
        ...

    def end(self, stderr_end: str) -> list[TraceEvent]:
        """The stream is over; `stderr_end` is the last of what was printed to stderr."""
        ...


@dataclass
class LineParser:
    """A parser of JSON lines; a harness's own one says what an object means."""

    report: StreamReport = field(default_factory=StreamReport)

    def feed(self, line: bytes) -> list[TraceEvent]:
        """The events of one line."""
        text = line.decode("utf-8", "replace").strip()
        if not text.startswith("{"):
            if text:
                self.report.stray_text = f"{self.report.stray_text}{text}\n"[-STRAY_CHARS:]
            return []
        if not text.endswith("}"):
            return self.lost("a line that is not JSON", len(line))
        try:
            record = json.loads(text, strict=False, parse_constant=_no_constant, parse_float=_finite)
        except (ValueError, RecursionError):
            return self.lost("a line that is not JSON", len(line))
        if text.count("{") + text.count("[") > MAX_DEPTH and _depth(record) > MAX_DEPTH:
            return self.lost(f"a line nested deeper than {MAX_DEPTH}", len(line))
        return list(self.read(_storable(record) if _may_be_unstorable(text) else record))

    def read(self, record: Record) -> Iterable[TraceEvent]:
        """The events of one object."""
        raise NotImplementedError

    def lost(self, reason: str, n_bytes: int) -> list[TraceEvent]:
        """One `trace_loss`."""
        return [TraceEvent("trace_loss", {"reason": reason, "bytes": n_bytes})]

    def end(self, stderr_end: str) -> list[TraceEvent]:
        """Nothing more, unless the harness says its errors on stderr."""
        return []

    def fail(self, error: StreamError, record: Record | None = None, **also: Any) -> TraceEvent:
        """An `error` event; it is the run's end unless the harness goes on."""
        self.report.error = error
        return error_event(error, record, **also)

    def say(self, text: str, **also: Any) -> TraceEvent:
        """The agent's message; whatever failed before was got over."""
        self.report.final_text, self.report.error = text, None
        return chunk("agent_message_chunk", text, **also)


@dataclass
class EchoingParser(LineParser):
    """Of a harness whose first user message is the prompt said again, which is no event."""

    has_prompt: bool = False

    def hear(self, text: str, **also: Any) -> Iterator[TraceEvent]:
        """A user message."""
        if self.has_prompt:
            yield chunk("user_message_chunk", text, **also)
        self.has_prompt = True


def chunk(kind: str, text: str, *, is_delta: bool = False, **also: Any) -> TraceEvent:
    """A `user_message_chunk`, `agent_message_chunk` or `agent_thought_chunk`.

    A delta goes on with the message before it; other chunks are whole.
    """
    said: dict[str, Any] = {"content": {"type": "text", "text": text}}
    return update_event(kind, {**said, "delta": True} if is_delta else said, **also)


def update_event(
    kind: str,
    members: Mapping[str, Any],
    *,
    at: str | None = None,
    message_id: str | None = None,
    parent: str | None = None,
) -> TraceEvent:
    """An event whose data is an `update`.

    `at` is the stream's own time, `message_id` names the model's turn where the stream tells it, and
    `parent` the tool call whose subagent says this.
    """
    update = {"sessionUpdate": kind, **members}
    if message_id:
        update["messageId"] = message_id
    if parent:
        update["parentToolCallId"] = parent
    return TraceEvent(kind, {"timestamp": at, "update": update} if at else {"update": update})


def error_event(error: StreamError, record: Record | None = None, **also: Any) -> TraceEvent:
    """An `error`: message, kind, HTTP status where the harness tells it, and what else is known."""
    known = {"message": error.message, "kind": error.kind, "httpStatus": error.http_status, **also}
    at = timestamp(record.get("timestamp")) if record else None
    data = {name: value for name, value in {"timestamp": at, **known}.items() if value is not None}
    return TraceEvent("error", data)


def usage_event(usage: ReportedUsage, *, covers: str | None = None, **also: Any) -> TraceEvent:
    """A harness's own reading: of one call, or of all that `covers` names where it tells only a sum."""
    counts: dict[str, Any] = {
        "promptTokens": usage.prompt_tokens,
        "completionTokens": usage.completion_tokens,
        "cachedTokens": usage.cached_tokens,
    }
    if covers:
        counts["extra"] = {"covers": covers}
    return update_event("usage", {"scope": "call", "usage": counts}, **also)


def plan_event(entries: Iterable[tuple[str, str]], **also: Any) -> TraceEvent:
    """The agent's to-do list as it now stands: (what, status)."""
    shown = [{"content": what, "status": status or "pending"} for what, status in entries]
    return update_event("plan", {"entries": shown}, **also)


def member(record: Any, name: str) -> dict[str, Any]:
    """An object's member that is an object; else empty."""
    value = cast("Record", record).get(name) if isinstance(record, Mapping) else None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def members(record: Any, name: str) -> list[dict[str, Any]]:
    """The objects of an object's member that is a list; else none."""
    value = cast("Record", record).get(name) if isinstance(record, Mapping) else None
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", item) for item in listed if isinstance(item, dict)]


def word(record: Any, name: str) -> str:
    """An object's member that is text; else empty."""
    value = cast("Record", record).get(name) if isinstance(record, Mapping) else None
    return value if isinstance(value, str) else ""


def count(record: Any, name: str) -> int:
    """An object's member that is a number of things; else 0."""
    value = cast("Record", record).get(name) if isinstance(record, Mapping) else None
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else 0


def plain_text(value: Any) -> str:
    """What a tool or a message says as text: blocks one after another, pictures named, data as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(_block_text(block) for block in cast("list[Any]", value))
    return json.dumps(value, ensure_ascii=False)


def _block_text(block: Any) -> str:
    text = word(block, "text")
    if text or word(block, "type") == "text":
        return text
    if word(block, "type") in ("image", "audio", "image_url"):
        return f"[{word(block, 'type').removesuffix('_url')}]"
    return block if isinstance(block, str) else json.dumps(block, ensure_ascii=False)


def arguments_of(value: Any) -> Any:
    """A tool call's arguments; text that holds a JSON object is that object."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value, strict=False, parse_constant=_no_constant, parse_float=_finite)
    except (ValueError, RecursionError):
        return value
    is_shown = isinstance(parsed, dict) and _depth(parsed) <= MAX_DEPTH
    return _storable(parsed) if is_shown else value


def timestamp(value: Any) -> str | None:
    """A time as the wire shows it, from milliseconds or from ISO 8601; None for what is neither."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(value / 1000, UTC)
        elif isinstance(value, str):
            moment = datetime.fromisoformat(value).astimezone(UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _no_constant(_: str) -> None:
    return None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _depth(value: Any) -> int:
    """How deep lists and objects stand in each other."""
    depth, level = 0, [value]
    while level := [
        item
        for outer in level
        if isinstance(outer, dict | list)
        for item in (cast("dict[Any, Any]", outer).values() if isinstance(outer, dict) else outer)
    ]:
        depth += 1
    return depth


def _may_be_unstorable(text: str) -> bool:
    return "\\u0000" in text or "\\ud" in text or "\\uD" in text or "\0" in text


def _storable(value: Any) -> Any:
    """The value without what Postgres refuses in text: NUL, and halves of surrogate pairs."""
    if isinstance(value, str):
        return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_storable(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value
