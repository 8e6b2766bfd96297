"""codex: `exec --json`. Items start, change and complete under one id; a turn's usage comes at its end."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from activities.traces.base import (
    LineParser,
    Record,
    ReportedUsage,
    TraceEvent,
    chunk,
    count,
    error_event,
    member,
    members,
    plain_text,
    plan_event,
    usage_event,
    word,
)
from activities.traces.failures import stream_error
from activities.traces.tools import tool_call, tool_result

# Said of every model that codex does not know; it changes nothing.
_HARMLESS = "Model metadata for"
_RETRY = re.compile(r"Reconnecting\.\.\. (\d+)/\d+")
_FAILED = ("failed", "declined")


@dataclass
class CodexParser(LineParser):
    """A call is told apart by its item's id only: there is no id of the model's."""

    started: set[str] = field(default_factory=set[str])
    last_error: str | None = None

    def read(self, record: Record) -> Iterable[TraceEvent]:
        match word(record, "type"):
            case "thread.started":
                self.report.session_id = word(record, "thread_id") or None
            case "item.started" | "item.updated" | "item.completed" as kind:
                return self._item(member(record, "item"), is_over=kind == "item.completed")
            case "turn.completed":
                return self._turn_completed(member(record, "usage"))
            case "turn.failed":
                return self._turn_failed(word(member(record, "error"), "message"))
            case "error":
                return self._error(word(record, "message"))
            case _:
                pass
        return ()

    def _item(self, item: Record, *, is_over: bool) -> Iterator[TraceEvent]:
        match word(item, "type"):
            case "agent_message" if is_over:
                yield self.say(word(item, "text"))
            case "reasoning" if is_over:
                yield chunk("agent_thought_chunk", word(item, "text"))
            case "todo_list":
                yield plan_event(map(_todo, members(item, "items")))
            case "error" if is_over and not word(item, "message").startswith(_HARMLESS):
                yield error_event(stream_error(word(item, "message")), isWarning=True)
            case "command_execution" | "mcp_tool_call" | "file_change" | "web_search" | "collab_tool_call":
                yield from self._tool(item, is_over=is_over)
            case _:
                return

    def _tool(self, item: Record, *, is_over: bool) -> Iterator[TraceEvent]:
        call_id = word(item, "id")
        if call_id not in self.started:
            self.started.add(call_id)
            self.report.error = None
            yield tool_call(call_id, *_called(item))
        if is_over:
            self.started.discard(call_id)
            exit_code = item.get("exit_code")
            is_failed = (
                word(item, "status") in _FAILED or exit_code not in (None, 0) or bool(item.get("error"))
            )
            yield tool_result(
                call_id,
                _output(item),
                is_failed=is_failed,
                exit_code=exit_code if isinstance(exit_code, int) else None,
            )

    def _turn_completed(self, usage: Record) -> Iterator[TraceEvent]:
        self.report.has_ended, self.report.error = True, None
        turn = ReportedUsage(
            count(usage, "input_tokens"), count(usage, "output_tokens"), count(usage, "cached_input_tokens")
        )
        self.report.usage = turn if self.report.usage is None else self.report.usage + turn
        yield usage_event(turn, covers="turn")

    def _turn_failed(self, message: str) -> Iterator[TraceEvent]:
        self.report.has_ended = True
        if message != self.last_error or self.report.error is None:
            yield self.fail(stream_error(message))

    def _error(self, message: str) -> Iterator[TraceEvent]:
        retry = _RETRY.match(message)
        if retry:
            yield error_event(stream_error(message), willRetry=True, attempt=int(retry[1][:9]))
        else:
            self.last_error = message
            yield self.fail(stream_error(message))


def _todo(item: Record) -> tuple[str, str]:
    return word(item, "text"), "completed" if item.get("completed") is True else "pending"


def _called(item: Record) -> tuple[str, Any]:
    """A tool's name and arguments."""
    match word(item, "type"):
        case "command_execution":
            return "command_execution", {"command": word(item, "command")}
        case "mcp_tool_call":
            return f"mcp__{word(item, 'server')}__{word(item, 'tool')}", item.get("arguments")
        case "file_change":
            return "file_change", {"changes": item.get("changes")}
        case "web_search":
            return "web_search", {"query": word(item, "query")}
        case _:
            asked = {name: item[name] for name in ("prompt", "receiver_thread_ids") if item.get(name)}
            return word(item, "tool") or "collab_tool_call", asked


def _output(item: Record) -> str:
    match word(item, "type"):
        case "command_execution":
            return word(item, "aggregated_output")
        case "mcp_tool_call":
            error = word(member(item, "error"), "message") or plain_text(item.get("error"))
            return error or plain_text(member(item, "result").get("content"))
        case "file_change":
            changes = members(item, "changes")
            return "\n".join(f"{word(change, 'kind')} {word(change, 'path')}" for change in changes)
        case _:
            return plain_text(item.get("agents_states"))
