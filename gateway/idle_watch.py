"""A limit on how long an upstream may be silent, without a timer for each chunk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class IdleWatch:
    """Calls `give_up` once, when `touch` has not been called for `limit_sec`. Use as a context manager."""

    def __init__(self, limit_sec: float, give_up: Callable[[], None]) -> None:
        self._limit_sec = limit_sec
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._touched_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.is_expired = False

    def __enter__(self) -> IdleWatch:
        self._timer = self._loop.call_later(self._limit_sec, self._look)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def touch(self) -> None:
        self._touched_at = self._loop.time()

    def _look(self) -> None:
        left = self._touched_at + self._limit_sec - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
            return
        self.is_expired = True
        self._give_up()
