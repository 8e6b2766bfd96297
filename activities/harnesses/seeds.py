"""A conversation that the agent is to continue: a task's `trajectory.json` (ATIF), as turns of a chat.

What no model's history can hold is left out: system prompts, which are the harness's own, reasoning, which
providers sign, and images.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from domain.errors import TaskError
from domain.task_steps import SEED_FILE

NO_OUTPUT = "(no output)"
_NAMESPACE = uuid.UUID("5f0c1b7e-3f55-4a39-8a0d-2c2f7a5f5f10")
_FIRST_STAMP = datetime(2025, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class ToolUse:
    """A tool called, and what it gave back."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    result: str


@dataclass(frozen=True)
class Turn:
    """What one side said. Only the agent's turn uses tools."""

    is_agent: bool
    text: str
    tools: tuple[ToolUse, ...]
    at: datetime


SEEDED_HARNESSES = frozenset({"claude", "codex"})
"""Those that go on with a task's `trajectory.json` (contract 6.8)."""


def seed_id(task_name: str) -> str:
    """The session's id: the same whenever it is asked for."""
    return str(uuid.uuid5(_NAMESPACE, task_name))


def stamp(at: datetime) -> str:
    """As sessions write times: UTC in milliseconds, with Z."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def read_seed(path: Path) -> tuple[Turn, ...]:
    """The turns of a trajectory. Raises `TaskError` when it is none."""
    try:
        document = json.loads(path.read_bytes())
        steps = document["steps"]
        turns = [turn for index, step in enumerate(steps) for turn in _turns(index, step)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskError(f"{SEED_FILE}: no ATIF trajectory: {error!r}") from None
    if not turns:
        raise TaskError(f"{SEED_FILE}: it has no turn of a user or an agent")
    return tuple(turns)


def _turns(index: int, step: Mapping[str, Any]) -> list[Turn]:
    """The turns of a step; what an agent saw without having called a tool is told by the user."""
    if step["source"] == "system":
        return []
    at = _time(step.get("timestamp"), index)
    text, results = _text(step.get("message")), _results(step)
    is_agent = step["source"] == "agent"
    calls = cast("Sequence[Mapping[str, Any]]", step.get("tool_calls") or ()) if is_agent else ()
    tools = tuple(_tool(index, position, call, results) for position, call in enumerate(calls))
    turns = [Turn(is_agent, text, tools, at)] if text or tools else []
    seen = "\n".join(text for _, text in results if text)
    if seen and not tools:
        turns.append(Turn(False, seen, (), at))
    return turns


def _tool(
    index: int, position: int, call: Mapping[str, Any], results: Sequence[tuple[str | None, str]]
) -> ToolUse:
    told = call.get("tool_call_id")
    given = [text for call_id, text in results if call_id == told and told is not None]
    unnamed = [text for call_id, text in results if call_id is None]
    result = "\n".join(given) or (unnamed[position] if position < len(unnamed) else "")
    arguments = call.get("arguments") or {}
    if not isinstance(arguments, Mapping):
        arguments = {"input": arguments}
    # Its own ids, in the order of the steps: providers allow few characters, and each id once.
    return ToolUse(
        call_id=f"call_seed_{index}_{position}",
        name=re.sub(r"[^A-Za-z0-9_-]", "_", str(call["function_name"]))[:64],
        arguments=cast("Mapping[str, Any]", arguments),
        result=result or NO_OUTPUT,
    )


def _results(step: Mapping[str, Any]) -> list[tuple[str | None, str]]:
    observation = step.get("observation") or {}
    return [
        (each.get("source_call_id"), _text(each.get("content"))) for each in observation.get("results") or ()
    ]


def _text(content: Any) -> str:
    """A message's text: a string, or the text parts of a list."""
    if isinstance(content, list):
        parts = cast("list[Mapping[str, Any]]", content)
        return "\n".join(str(part.get("text") or "") for part in parts if part.get("type") == "text")
    return "" if content is None else str(content)


def _time(told: Any, index: int) -> datetime:
    fallback = _FIRST_STAMP + timedelta(seconds=index)
    if not isinstance(told, str):
        return fallback
    try:
        at = datetime.fromisoformat(told)
    except ValueError:
        return fallback
    return at if at.tzinfo else at.replace(tzinfo=UTC)
