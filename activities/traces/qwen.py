"""qwen: `-o stream-json`, shaped as claude's. It says success whatever happened; its text tells errors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from activities.traces.base import (
    Record,
    ReportedUsage,
    TraceEvent,
    count,
    member,
    plain_text,
    usage_event,
    word,
)
from activities.traces.blocks import BlocksParser
from activities.traces.failures import stream_error
from activities.traces.tools import tool_result

_API_ERROR = re.compile(r"\[API Error: (.*)\]\s*", re.DOTALL)
_CUT_BY_ERROR = re.compile(r".*\[API Error: (.*)\]\s*", re.DOTALL)
# A command without output is answered by a form that tells its end; one with output only by the output.
_EXIT_CODE = re.compile(r"\ACommand: .*^Exit Code: (\d+)$", re.DOTALL | re.MULTILINE)


@dataclass
class QwenParser(BlocksParser):
    """Usage comes with the last block of a message; on the others it is zero.

    A call that broke off leaves its error behind the text that had come, in one block without usage.
    """

    unmetered: str | None = None
    """The last message, if it came without usage."""

    def system(self, record: Record) -> Iterable[TraceEvent]:
        super().system(record)
        if word(record, "subtype") == "init":
            self.report.version = word(record, "qwen_code_version") or None
        return ()

    def assistant(self, record: Record) -> Iterator[TraceEvent]:
        message = member(record, "message")
        text = plain_text(message.get("content"))
        failed = _API_ERROR.fullmatch(text)
        if failed and not word(record, "parent_tool_use_id"):
            yield self.fail(stream_error(failed[1]), record)
        else:
            yield from super().assistant(record)
        usage = _usage(member(message, "usage"))
        self.unmetered = None if usage.prompt_tokens else text
        if usage.prompt_tokens:
            yield usage_event(usage, **self.whence(record))

    def tool_end(self, block: Record, record: Record, also: dict[str, Any]) -> Iterator[TraceEvent]:
        output = plain_text(block.get("content"))
        told = _EXIT_CODE.search(output)
        exit_code = int(told[1][:9]) if told else None
        is_failed = block.get("is_error") is True or bool(exit_code)
        yield tool_result(
            word(block, "tool_use_id"), output, is_failed=is_failed, exit_code=exit_code, **also
        )

    def result(self, record: Record) -> Iterator[TraceEvent]:
        report = self.report
        report.has_ended = True
        report.usage = _usage(member(record, "usage"))
        told = word(record, "result") or word(member(record, "error"), "message")
        failed = (_CUT_BY_ERROR if told == self.unmetered else _API_ERROR).fullmatch(told)
        if report.error is None and (failed or record.get("is_error") is True):
            yield self.fail(stream_error(failed[1] if failed else told), record)
        elif not failed:
            report.final_text = told or report.final_text


def _usage(usage: Record) -> ReportedUsage:
    """OpenAI's counts: cached ones are among the input."""
    return ReportedUsage(
        count(usage, "input_tokens"), count(usage, "output_tokens"), count(usage, "cache_read_input_tokens")
    )
