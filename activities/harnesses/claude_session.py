"""A session file of Claude Code made from turns: one JSON line a message, each naming the one before."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from typing import Any

from activities.harnesses.seeds import Turn, stamp

# Past it the CLI adds a hash of its own; no working directory of ours is that long.
MAX_SLUG = 200


def session_path(home: str, workdir: str, session_id: str) -> str:
    """Where the CLI looks for a session of `workdir`, which must be free of links."""
    slug = re.sub(r"[^a-zA-Z0-9]", "-", workdir)[:MAX_SLUG]
    return f"{home}/.claude/projects/{slug}/{session_id}.jsonl"


def session_lines(turns: Sequence[Turn], session_id: str, workdir: str, version: str, model: str) -> bytes:
    """The whole file."""
    lines: list[bytes] = []
    parent: str | None = None
    for turn in turns:
        for role, message in _messages(turn, len(lines), model):
            own = str(uuid.uuid5(uuid.UUID(session_id), str(len(lines))))
            entry = {
                "parentUuid": parent,
                "isSidechain": False,
                "userType": "external",
                "cwd": workdir,
                "sessionId": session_id,
                "version": version,
                "type": role,
                "message": message,
                "uuid": own,
                "timestamp": stamp(turn.at),
            }
            lines.append(json.dumps(entry).encode() + b"\n")
            parent = own
    return b"".join(lines)


def _messages(turn: Turn, index: int, model: str) -> list[tuple[str, dict[str, Any]]]:
    if not turn.is_agent:
        return [("user", {"role": "user", "content": turn.text})]
    content: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    for tool in turn.tools:
        content.append(
            {"type": "tool_use", "id": tool.call_id, "name": tool.name, "input": dict(tool.arguments)}
        )
    said = {
        "id": f"msg_seed_{index}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": "tool_use" if turn.tools else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }
    messages: list[tuple[str, dict[str, Any]]] = [("assistant", said)]
    if turn.tools:
        results = [
            {"type": "tool_result", "tool_use_id": tool.call_id, "content": tool.result}
            for tool in turn.tools
        ]
        messages.append(("user", {"role": "user", "content": results}))
    return messages
