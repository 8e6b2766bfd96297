"""droid: `exec -o stream-json`. Reasoning comes twice on the chat wire; there is no last line on failure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from activities.traces.base import (
    EchoingParser,
    Record,
    TraceEvent,
    chunk,
    member,
    plain_text,
    timestamp,
    usage_event,
    word,
)
from activities.traces.blocks import block_usage
from activities.traces.failures import stream_error
from activities.traces.tools import call_events, tool_result


@dataclass
class DroidParser(EchoingParser):
    """Reasoning that was told already is no event."""

    last_reasoning: tuple[str, str] | None = None

    def read(self, record: Record) -> Iterable[TraceEvent]:
        at = timestamp(record.get("timestamp"))
        match word(record, "type"):
            case "system":
                self.report.session_id = word(record, "session_id") or None
                self.report.model = word(record, "model") or None
            case "message":
                return self._message(record, {"at": at, "message_id": word(record, "id") or None})
            case "reasoning":
                return self._reasoning(record, {"at": at, "message_id": word(record, "id") or None})
            case "tool_call":
                return self._call(record, {"at": at, "message_id": word(record, "messageId") or None})
            case "tool_result":
                return self._result(record, at)
            case "error":
                return self._error(record)
            case "completion":
                return self._completion(record, at)
            case _:
                pass
        return ()

    def _message(self, record: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        if word(record, "role") == "assistant":
            yield self.say(word(record, "text"), **also)
        else:
            yield from self.hear(word(record, "text"), **also)

    def _reasoning(self, record: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        said = (word(record, "id"), word(record, "text"))
        if said != self.last_reasoning and said[1]:
            yield chunk("agent_thought_chunk", said[1], **also)
        self.last_reasoning = said

    def _call(self, record: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        self.report.error = None
        name, arguments = word(record, "toolName") or word(record, "toolId"), record.get("parameters")
        yield from call_events(word(record, "id"), name, arguments, **also)

    def _result(self, record: Record, at: str | None) -> Iterator[TraceEvent]:
        output = plain_text(record.get("value")) or word(member(record, "error"), "message")
        yield tool_result(word(record, "id"), output, is_failed=record.get("isError") is True, at=at)

    def _error(self, record: Record) -> Iterator[TraceEvent]:
        """The agent loop says what happened; the command's own line after it may be the last text."""
        if word(record, "source") != "cli" or self.report.error is None:
            yield self.fail(stream_error(word(record, "message")), record)

    def _completion(self, record: Record, at: str | None) -> Iterator[TraceEvent]:
        report = self.report
        report.has_ended, report.error = True, None
        report.final_text = word(record, "finalText") or report.final_text
        report.usage = block_usage(member(record, "usage"))
        yield usage_event(report.usage, covers="run", at=at)
