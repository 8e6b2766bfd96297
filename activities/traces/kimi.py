"""kimi: `--output-format stream-json`. Messages only, no usage, thoughts or times; errors are on stderr."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from activities.traces.base import (
    LineParser,
    Record,
    TraceEvent,
    arguments_of,
    chunk,
    count,
    error_event,
    member,
    members,
    plain_text,
    word,
)
from activities.traces.failures import FailureKind, stream_error
from activities.traces.tools import call_events, tool_result

_FAILED = re.compile(r"^Command failed with exit code: (\d+)\.?\s*\Z", re.MULTILINE)
_STDERR_ERROR = re.compile(r"^error: failed to run prompt: (?:([\w.]+): )?(.*)", re.MULTILINE | re.DOTALL)
_ERROR_KINDS: dict[str, FailureKind] = {
    "provider.auth_error": "auth",
    "provider.rate_limit": "rate_limit",
    "context.overflow": "context_length",
}


@dataclass
class KimiParser(LineParser):
    """One line a message, as Chat Completions has them."""

    def read(self, record: Record) -> Iterable[TraceEvent]:
        match word(record, "role"):
            case "assistant":
                return self._assistant(record)
            case "tool":
                return self._tool(record)
            case "user":
                return [chunk("user_message_chunk", plain_text(record.get("content")))]
            case "meta":
                return self._meta(record)
            case _:
                return ()

    def _assistant(self, record: Record) -> Iterator[TraceEvent]:
        thought = word(record, "reasoning_content")
        if thought:
            yield chunk("agent_thought_chunk", thought)
        for kind, text in _parts(record.get("content")):
            yield self.say(text) if kind == "text" else chunk("agent_thought_chunk", text)
        for call in members(record, "tool_calls"):
            function = member(call, "function")
            name, arguments = word(function, "name"), arguments_of(function.get("arguments"))
            self.report.error = None
            yield from call_events(word(call, "id"), name, arguments)

    def _tool(self, record: Record) -> Iterator[TraceEvent]:
        output = plain_text(record.get("content"))
        failed = _FAILED.search(output)
        yield tool_result(
            word(record, "tool_call_id"),
            output,
            is_failed=failed is not None,
            exit_code=int(failed[1][:9]) if failed else None,
        )

    def _meta(self, record: Record) -> Iterable[TraceEvent]:
        match word(record, "type"):
            case "system.version":
                self.report.version = word(record, "version") or None
            case "session.resume_hint":
                self.report.session_id = word(record, "session_id") or None
                self.report.has_ended = True
            case "turn.step.retrying":
                status = count(record, "status_code") or None
                error = stream_error(word(record, "error_message"), status=status)
                return [error_event(error, willRetry=True, attempt=count(record, "failed_attempt"))]
            case _:
                pass
        return ()

    def end(self, stderr_end: str) -> list[TraceEvent]:
        """The error that ended the run, which stderr has."""
        told = None if self.report.has_ended else _STDERR_ERROR.search(stderr_end)
        if told is None:
            return []
        error = stream_error(told[2])
        kind = error.kind if error.kind != "other" else _ERROR_KINDS.get(told[1] or "")
        return [self.fail(stream_error(told[2], status=error.http_status, kind=kind))]


def _parts(content: Any) -> Iterator[tuple[str, str]]:
    """(`text` or `think`, what) of a message."""
    if isinstance(content, str):
        if content:
            yield "text", content
        return
    for part in cast("list[Any]", content) if isinstance(content, list) else ():
        kind = "think" if word(part, "type") == "think" else "text"
        text = word(part, kind)
        if text:
            yield kind, text
