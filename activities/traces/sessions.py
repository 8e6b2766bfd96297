"""What a harness keeps of its run in its home and does not print: thoughts, subagents, the system prompt.

kimi's log of its loop and gemini's chat file tell the thoughts of each turn, and claude keeps a transcript
of each subagent, of which it prints the calls only. They go into the trajectory; the trace holds what was
printed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, cast

from activities.traces.base import count, member, members, word
from activities.traces.claude import ClaudeParser


@dataclass(frozen=True)
class SessionFacts:
    """One text of thoughts a turn of the model's, empty where it had none, in their order."""

    thoughts: tuple[str, ...] = ()
    system_prompt: str | None = None


@dataclass(frozen=True)
class SessionFile:
    """Where a harness keeps the session `{session_id}`, below `agent/`, and how it is read."""

    pattern: str
    read: Callable[[Iterable[dict[str, Any]]], SessionFacts]

    def is_at(self, path: str, session_id: str) -> bool:
        """Whether the kept path is this session's file."""
        return fnmatchcase(path, self.pattern.format(session_id=session_id, short_id=session_id[:8]))


def records(data: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file of lines; what is none is passed over."""
    for line in data.splitlines():
        try:
            record = json.loads(line, strict=False)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            yield cast("dict[str, Any]", record)


def read_kimi(lines: Iterable[dict[str, Any]]) -> SessionFacts:
    """`wire.jsonl`: a step of the loop is a turn once it says or calls something; others were tried again."""
    turns, system_prompt = [""], None
    is_turn = True
    for record in lines:
        event = member(record, "event")
        part = member(event, "part")
        match word(record, "type"), word(event, "type"):
            case "profile.bind", _:
                system_prompt = word(record, "systemPrompt") or system_prompt
            case "context.append_loop_event", "step.begin":
                if is_turn:
                    turns.append("")
                turns[-1], is_turn = "", False
            case "context.append_loop_event", "content.part":
                turns[-1] = _joined(turns[-1], word(part, "think"))
                is_turn = is_turn or bool(word(part, "text"))
            case "context.append_loop_event", "tool.call":
                is_turn = True
            case _:
                continue
    return SessionFacts(tuple(turns[1:] if is_turn else turns[1:-1]), system_prompt)


def read_gemini(lines: Iterable[dict[str, Any]]) -> SessionFacts:
    """`session-*.jsonl`: a message is written again as it grows, under one id."""
    messages = {word(record, "id"): record for record in lines if word(record, "type") == "gemini"}
    turns = [record for record in messages.values() if record.get("content") or record.get("toolCalls")]
    return SessionFacts(tuple("\n".join(map(_thought, members(turn, "thoughts"))) for turn in turns))


def _thought(thought: dict[str, Any]) -> str:
    return ": ".join(filter(None, (word(thought, "subject"), word(thought, "description"))))


def subagents_of(files: Mapping[str, bytes]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """claude's subagents out of their transcripts and what is noted of each (`SUBAGENT_FILES`), by path.

    Events (type, data) by the call that made the subagent, outer ones first.
    """
    runs: list[tuple[int, str, list[tuple[str, dict[str, Any]]]]] = []
    for path, noted in files.items():
        transcript = files.get(f"{path.removesuffix(META)}.jsonl") if path.endswith(META) else None
        for meta in records(noted) if transcript is not None else ():
            parser = ClaudeParser()
            events = [event for line in (transcript or b"").splitlines() for event in parser.feed(line)]
            told = [(event.type, event.data) for event in events]
            runs.append((count(meta, "spawnDepth"), word(meta, "toolUseId"), told))
    return {call_id: told for _, call_id, told in sorted(runs, key=lambda run: run[:2])}


def _joined(before: str, more: str) -> str:
    return "\n".join(filter(None, (before, more)))


META = ".meta.json"
SUBAGENT_FILES: Mapping[str, str] = MappingProxyType({"claude": "agent/.claude/projects/*/subagents/agent-*"})
"""Where a harness keeps its subagents' transcripts, below `agent/`."""
SESSION_FILES: Mapping[str, SessionFile] = MappingProxyType(
    {
        "kimi": SessionFile("agent/.kimi-code/sessions/*/{session_id}/agents/main/wire.jsonl", read_kimi),
        "gemini": SessionFile("agent/.gemini/tmp/*/chats/session-*-{short_id}.jsonl", read_gemini),
    }
)
