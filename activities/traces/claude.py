"""claude: `--output-format stream-json --verbose`. One line a content block; the last line has the totals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from activities.traces.base import (
    Record,
    ReportedUsage,
    TraceEvent,
    count,
    error_event,
    member,
    plain_text,
    plan_event,
    usage_event,
    word,
)
from activities.traces.blocks import BlocksParser, block_usage
from activities.traces.failures import FailureKind, StreamError, stream_error

SYNTHETIC = "<synthetic>"
"""The model of a line that claude writes itself, to tell an error."""

_ERROR_KINDS: dict[str, FailureKind] = {
    "authentication_failed": "auth",
    "billing_error": "budget",
    "rate_limit": "rate_limit",
}


@dataclass
class ClaudeParser(BlocksParser):
    """Usage of single lines is the message's start (1 output token), so only the totals are read."""

    tasks: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """The plan, by task id: (what, status)."""
    updates: dict[str, Record] = field(default_factory=dict[str, Record])
    """Arguments of plan calls under way, by call id."""

    def system(self, record: Record) -> Iterable[TraceEvent]:
        super().system(record)
        if word(record, "subtype") == "init":
            self.report.version = word(record, "claude_code_version") or None
        elif word(record, "subtype") == "api_retry":
            status = count(record, "error_status") or None
            error = stream_error(word(record, "error"), status=status, kind=_kind(word(record, "error")))
            return [error_event(error, record, willRetry=True, attempt=count(record, "attempt"))]
        return ()

    def assistant(self, record: Record) -> Iterator[TraceEvent]:
        message = member(record, "message")
        if word(message, "model") == SYNTHETIC and word(record, "error"):
            text = plain_text(message.get("content"))
            yield self.fail(stream_error(text, kind=_kind(word(record, "error"))), record)
        else:
            yield from super().assistant(record)

    def call(self, block: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        if word(block, "name") in ("TaskCreate", "TaskUpdate"):
            self.updates[word(block, "id")] = member(block, "input")
        yield from super().call(block, also)

    def tool_end(self, block: Record, record: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        yield from super().tool_end(block, record, also)
        asked = self.updates.pop(word(block, "tool_use_id"), None)
        if asked is not None and block.get("is_error") is not True:
            self._change_plan(asked, member(record, "tool_use_result"))
            yield plan_event(self.tasks.values(), **also)

    def _change_plan(self, asked: Record, result: Record) -> None:
        made = member(result, "task")
        task_id = word(made, "id") or word(asked, "taskId")
        what, status = self.tasks.get(task_id, ("", "pending"))
        what = word(asked, "subject") or word(made, "subject") or what
        self.tasks[task_id] = (what, word(asked, "status") or status)
        if self.tasks[task_id][1] == "deleted":
            del self.tasks[task_id]

    def result(self, record: Record) -> Iterator[TraceEvent]:
        report = self.report
        report.has_ended = True
        error = self._error(record)
        if error is None:
            report.error = None
            report.final_text = word(record, "result") or report.final_text
        elif report.error is None:
            yield self.fail(error, record)
        else:
            # The synthetic line before has said it already; the status comes here.
            report.error = error
        report.usage = _totals(record)
        yield usage_event(report.usage, covers="run")

    def _error(self, record: Record) -> StreamError | None:
        if word(record, "stop_reason") == "refusal":
            return stream_error(word(record, "result") or "the model refused", kind="safety_refusal")
        if record.get("is_error") is not True:
            return None
        status = count(record, "api_error_status") or None
        told = "\n".join(_texts(record.get("errors"))) or word(record, "result")
        kind = self.report.error.kind if self.report.error else None
        return stream_error(
            told or word(record, "subtype"), status=status, kind=None if kind == "other" else kind
        )

    def whence(self, record: Record) -> dict[str, Any]:
        return {**super().whence(record), "message_id": word(member(record, "message"), "id") or None}


def _kind(error: str) -> FailureKind | None:
    return _ERROR_KINDS.get(error)


def _texts(value: Any) -> list[str]:
    return [text for text in map(plain_text, value) if text] if isinstance(value, list) else []


def _totals(record: Record) -> ReportedUsage:
    """All models together, subagents' included, where that is told; else the main loop's."""
    models = member(record, "modelUsage")
    if not models:
        return block_usage(member(record, "usage"))
    total = ReportedUsage(0, 0)
    for name in models:
        usage = member(models, name)
        cached = count(usage, "cacheReadInputTokens")
        prompt = count(usage, "inputTokens") + count(usage, "cacheCreationInputTokens") + cached
        total += ReportedUsage(prompt, count(usage, "outputTokens"), cached)
    return total
