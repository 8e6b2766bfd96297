"""What a scripted model answers, before any protocol gives it its shape."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from domain.usage import CallUsage

CREATED = 1_700_000_000
_PIECE = re.compile(r"\s*\S+\s*")


@dataclass(frozen=True)
class AnswerCall:
    """A call of a tool; `call_id` is unique in its conversation."""

    call_id: str
    name: str
    arguments: dict[str, Any]
    namespace: str | None = None

    @property
    def arguments_text(self) -> str:
        return json.dumps(self.arguments)


@dataclass(frozen=True)
class Answer:
    """`answer_id` is the same whenever the same turn is answered again. `usage` None: it is not told."""

    answer_id: str
    model: str
    thinking: str | None
    text: str | None
    calls: tuple[AnswerCall, ...]
    usage: CallUsage | None


def pieces(text: str) -> list[str]:
    """A text as a stream brings it, word by word."""
    return _PIECE.findall(text) or [text]


def event(document: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document, separators=(',', ':'))}\n\n".encode()
