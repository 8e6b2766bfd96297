"""Streams whose lines are messages of content blocks, as claude prints them and qwen after it."""

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
    members,
    plain_text,
    timestamp,
    word,
)
from activities.traces.tools import call_events, tool_result


@dataclass
class BlocksParser(LineParser):
    """`system`, `assistant`, `user` and `result` lines. A line of a subagent names the call that made it."""

    def read(self, record: Record) -> Iterable[TraceEvent]:
        """The events of one line."""
        match word(record, "type"):
            case "system":
                return self.system(record)
            case "assistant":
                return self.assistant(record)
            case "user":
                return self.user(record)
            case "result":
                return self.result(record)
            case _:
                return ()

    def system(self, record: Record) -> Iterable[TraceEvent]:
        """`init` names session, model and version."""
        if word(record, "subtype") == "init":
            self.report.session_id = word(record, "session_id") or None
            self.report.model = word(record, "model") or None
        return ()

    def assistant(self, record: Record) -> Iterator[TraceEvent]:
        """Text, thoughts and calls, in their order."""
        message = member(record, "message")
        also = self.whence(record)
        for block in _blocks(message):
            yield from self.assistant_block(block, also)

    def assistant_block(self, block: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        """One block of the agent's."""
        match word(block, "type"):
            case "text" if word(block, "text"):
                if also.get("parent"):
                    yield chunk("agent_message_chunk", word(block, "text"), **also)
                else:
                    yield self.say(word(block, "text"), **also)
            case "thinking" if word(block, "thinking"):
                yield chunk("agent_thought_chunk", word(block, "thinking"), **also)
            case "tool_use" | "server_tool_use":
                yield from self.call(block, also)
            case _:
                return

    def call(self, block: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        """A call, and the plan it writes."""
        self.report.error = None
        call_id, name = word(block, "id"), word(block, "name")
        yield from call_events(call_id, name, block.get("input"), **also)

    def user(self, record: Record) -> Iterator[TraceEvent]:
        """Results of tools, and what else the harness tells its model."""
        also = self.whence(record)
        for block in _blocks(member(record, "message")):
            if word(block, "type") == "tool_result":
                yield from self.tool_end(block, record, also)
            elif word(block, "text"):
                yield chunk("user_message_chunk", word(block, "text"), **also)

    def tool_end(self, block: Record, record: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        """The end of one call."""
        output = plain_text(block.get("content"))
        is_failed = block.get("is_error") is True
        yield tool_result(word(block, "tool_use_id"), output, is_failed=is_failed, **also)

    def result(self, record: Record) -> Iterable[TraceEvent]:
        """The stream's last line."""
        raise NotImplementedError

    def whence(self, record: Record) -> dict[str, Any]:
        """Time, turn and subagent of a line, where it tells them."""
        return {
            "at": timestamp(record.get("timestamp")),
            "parent": word(record, "parent_tool_use_id") or None,
        }


def _blocks(message: Record) -> list[dict[str, Any]]:
    """A message's blocks; text alone is one."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return members(message, "content")


def block_usage(usage: Record) -> ReportedUsage:
    """Anthropic's counts: the three kinds of input are apart, and a prompt is all of them."""
    cached = count(usage, "cache_read_input_tokens")
    prompt = count(usage, "input_tokens") + count(usage, "cache_creation_input_tokens") + cached
    return ReportedUsage(prompt, count(usage, "output_tokens"), cached)
