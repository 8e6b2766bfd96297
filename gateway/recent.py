"""What was read lately and may be used again for a moment."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")

MAX_ENTRIES = 4096


class Recent(Generic[Value]):
    """Values by key, each for `age_sec` after it was put."""

    def __init__(self, age_sec: float) -> None:
        self._age_sec = age_sec
        self._entries: dict[Hashable, tuple[float, Value]] = {}

    def get(self, key: Hashable) -> Value | None:
        entry = self._entries.get(key)
        if entry is None or time.monotonic() - entry[0] > self._age_sec:
            return None
        return entry[1]

    def put(self, key: Hashable, value: Value) -> None:
        if len(self._entries) >= MAX_ENTRIES:
            self._entries.clear()
        self._entries[key] = (time.monotonic(), value)
