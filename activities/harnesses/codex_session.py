"""A rollout file of Codex made from turns: the session's head, then items of the Responses protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from activities.harnesses.seeds import Turn, stamp


def rollout_path(home: str, turns: Sequence[Turn], session_id: str) -> str:
    """Where the CLI looks for it: by day, the id at the name's end."""
    at = turns[0].at
    return f"{home}/.codex/sessions/{at:%Y/%m/%d}/rollout-{at:%Y-%m-%dT%H-%M-%S}-{session_id}.jsonl"


def rollout_lines(turns: Sequence[Turn], session_id: str, workdir: str, version: str, provider: str) -> bytes:
    """The whole file."""
    head = {
        "session_id": session_id,
        "id": session_id,
        "timestamp": stamp(turns[0].at),
        "cwd": workdir,
        "originator": "codex_exec",
        "cli_version": version,
        "source": "exec",
        "model_provider": provider,
    }
    lines = [{"timestamp": stamp(turns[0].at), "type": "session_meta", "payload": head}]
    for turn in turns:
        lines += [
            {"timestamp": stamp(turn.at), "type": "response_item", "payload": item} for item in _items(turn)
        ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _items(turn: Turn) -> list[dict[str, Any]]:
    role, kind = ("assistant", "output_text") if turn.is_agent else ("user", "input_text")
    items: list[dict[str, Any]] = []
    if turn.text:
        items.append({"type": "message", "role": role, "content": [{"type": kind, "text": turn.text}]})
    for tool in turn.tools:
        items.append(
            {
                "type": "function_call",
                "name": tool.name,
                "arguments": json.dumps(dict(tool.arguments)),
                "call_id": tool.call_id,
            }
        )
    for tool in turn.tools:
        items.append({"type": "function_call_output", "call_id": tool.call_id, "output": tool.result})
    return items
