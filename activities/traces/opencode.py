"""opencode: `run --format json --thinking`. Parts of messages; a tool's line comes when it is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from activities.traces.base import (
    LineParser,
    Record,
    ReportedUsage,
    TraceEvent,
    chunk,
    count,
    member,
    plain_text,
    timestamp,
    usage_event,
    word,
)
from activities.traces.failures import FailureKind, stream_error
from activities.traces.tools import call_events, tool_result

_ERROR_NAMES: dict[str, FailureKind] = {
    "ProviderAuthError": "auth",
    "ContextOverflowError": "context_length",
}


@dataclass
class OpencodeParser(LineParser):
    """There is no last line: a run is over when a step has finished for another reason than tools."""

    def read(self, record: Record) -> Iterable[TraceEvent]:
        part = member(record, "part")
        self.report.session_id = self.report.session_id or word(record, "sessionID") or None
        at, turn = timestamp(record.get("timestamp")), word(part, "messageID") or None
        also: dict[str, Any] = {"at": at, "message_id": turn}
        match word(record, "type"):
            case "text" if word(part, "text"):
                return [self.say(word(part, "text"), **also)]
            case "reasoning" if word(part, "text"):
                return [chunk("agent_thought_chunk", word(part, "text"), **also)]
            case "tool_use":
                return self._tool(part, also)
            case "step_finish":
                return self._step(part, also)
            case "error":
                return self._error(member(record, "error"), record)
            case _:
                return ()

    def _tool(self, part: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        self.report.error = None
        call_id, name, state = word(part, "callID"), word(part, "tool"), member(part, "state")
        yield from call_events(call_id, name, state.get("input"), **also)
        exit_code = member(state, "metadata").get("exit")
        exit_code = exit_code if isinstance(exit_code, int) else None
        is_failed = word(state, "status") == "error" or bool(exit_code)
        output = plain_text(state.get("output")) or word(state, "error")
        yield tool_result(call_id, output, is_failed=is_failed, exit_code=exit_code, **also)

    def _step(self, part: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        self.report.has_ended = word(part, "reason") != "tool-calls"
        tokens = member(part, "tokens")
        cache = member(tokens, "cache")
        prompt = count(tokens, "input") + count(cache, "read") + count(cache, "write")
        completion = count(tokens, "output") + count(tokens, "reasoning")
        usage = ReportedUsage(prompt, completion, count(cache, "read"))
        self.report.usage = usage if self.report.usage is None else self.report.usage + usage
        yield usage_event(usage, **also)

    def _error(self, error: Record, record: Record) -> Iterator[TraceEvent]:
        data = member(error, "data")
        message = word(data, "message") or word(error, "message") or word(error, "name")
        status = count(data, "statusCode") or None
        kind = _ERROR_NAMES.get(word(error, "name"))
        yield self.fail(stream_error(message, status=status, kind=kind), record)
