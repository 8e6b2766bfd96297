"""gemini: `-o stream-json`. No thoughts, no tool failures, and output tokens that leave thoughts out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from activities.traces.base import (
    EchoingParser,
    Record,
    ReportedUsage,
    TraceEvent,
    count,
    error_event,
    member,
    plain_text,
    timestamp,
    usage_event,
    word,
)
from activities.traces.failures import stream_error
from activities.traces.tools import call_events, tool_result


@dataclass
class GeminiParser(EchoingParser):
    """Text comes in deltas, and the run's usage at its end."""

    is_message_open: bool = False
    """Whether more text would go on with the agent's last message."""

    def read(self, record: Record) -> Iterable[TraceEvent]:
        at = timestamp(record.get("timestamp"))
        match word(record, "type"):
            case "init":
                self.report.session_id = word(record, "session_id") or None
                self.report.model = word(record, "model") or None
            case "message":
                return self._message(record, at)
            case "tool_use":
                return self._call(record, at)
            case "tool_result":
                return self._result(record, at)
            case "error":
                return self._error(record)
            case "result":
                return self._end(record, at)
            case _:
                pass
        return ()

    def _message(self, record: Record, at: str | None) -> Iterator[TraceEvent]:
        text = word(record, "content")
        if word(record, "role") == "assistant":
            before = self.report.final_text or "" if self.is_message_open else ""
            yield self.say(text, at=at, is_delta=record.get("delta") is True)
            self.report.final_text = before + text
            self.is_message_open = True
        else:
            yield from self.hear(text, at=at)

    def _call(self, record: Record, at: str | None) -> Iterator[TraceEvent]:
        self.is_message_open, self.report.error = False, None
        name, arguments = word(record, "tool_name"), record.get("parameters")
        yield from call_events(word(record, "tool_id"), name, arguments, at=at)

    def _result(self, record: Record, at: str | None) -> Iterator[TraceEvent]:
        self.is_message_open = False
        output = plain_text(record.get("output")) or word(member(record, "error"), "message")
        is_failed = word(record, "status") == "error"
        yield tool_result(word(record, "tool_id"), output, is_failed=is_failed, at=at)

    def _error(self, record: Record) -> Iterator[TraceEvent]:
        """Loops and turn limits, told while the run goes on; only `result` ends it."""
        yield error_event(stream_error(word(record, "message")), record, isWarning=True)

    def _end(self, record: Record, at: str | None) -> Iterator[TraceEvent]:
        self.report.has_ended = True
        if word(record, "status") == "error":
            yield self.fail(stream_error(word(member(record, "error"), "message")), record)
        stats = member(record, "stats")
        prompt = count(stats, "input_tokens")
        # The total is told with thoughts, the output without.
        completion = max(count(stats, "output_tokens"), count(stats, "total_tokens") - prompt)
        self.report.usage = ReportedUsage(prompt, completion, count(stats, "cached"))
        yield usage_event(self.report.usage, covers="run", at=at)
