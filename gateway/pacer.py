"""The pace of refusals: an agent that asks on and on in vain fills neither the ledger nor the gateway.

A key has `FREE` refusals at once and `A_SEC` more each second, with a row each. Beyond that its calls wait
before they are read; and where too many wait, they are refused as the last one was, counted, and told to
the ledger together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime

from gateway.denials import Denial
from store.database import now
from store.keys import KeyGrant
from store.spend import RefusalKind

FREE = 30
A_SEC = 4.0
MAX_DELAY_SEC = 10.0
MAX_WAITING = 16
"""Calls of one key that wait for its pace; more are refused unread."""
MAX_DEBT = 600.0
TELL_SEC = 5.0
MAX_KEYS = 4096
# Not the box's doing.
_NOT_REFUSALS = frozenset(
    ("upstream_auth", "upstream_unreachable", "upstream_cut", "upstream_timeout", "unavailable")
)


@dataclass(frozen=True)
class Untold:
    """Refusals of one key that have no row yet."""

    grant: KeyGrant
    kind: RefusalKind
    count: int
    last_at: datetime


@dataclass
class _Pace:
    last: Denial
    left: float = FREE
    at: float = field(default_factory=time.monotonic)
    n_waiting: int = 0
    untold: Untold | None = None
    telling: asyncio.Task[None] | None = None

    def regain(self) -> None:
        at = time.monotonic()
        self.left, self.at = min(FREE, self.left + (at - self.at) * A_SEC), at


class RefusalPacer:
    """Paces all keys. `tell` writes one row for several refusals; it raises `Denial` while it cannot."""

    def __init__(self, tell: Callable[[Untold], Awaitable[None]]) -> None:
        self._tell = tell
        self._paces: dict[str, _Pace] = {}

    async def enter(self, grant: KeyGrant) -> None:
        """Before a call is read. Returns once it may be; raises the last refusal where too many wait."""
        pace = self._paces.get(grant.key_id)
        if pace is None:
            return
        pace.regain()
        if pace.left >= 1:
            return
        if pace.n_waiting >= MAX_WAITING:
            self._count(pace, grant)
            raise Denial(pace.last.kind, pace.last.message)
        pace.n_waiting += 1
        try:
            await asyncio.sleep(min((1 - pace.left) / A_SEC, MAX_DELAY_SEC))
        finally:
            pace.n_waiting -= 1

    def note(self, grant: KeyGrant, denial: Denial) -> None:
        """A call of the key was refused."""
        if denial.kind in _NOT_REFUSALS:
            return
        pace = self._paces.get(grant.key_id)
        if pace is None:
            self._make_room()
            pace = self._paces[grant.key_id] = _Pace(denial)
        pace.regain()
        pace.last = Denial(denial.kind, denial.message)  # without its traceback
        pace.left = max(pace.left - 1, -MAX_DEBT)

    async def close(self) -> None:
        """Tell what is untold, as far as it can be."""
        telling = [pace.telling for pace in self._paces.values() if pace.telling is not None]
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)
        await asyncio.gather(*(self._tell_now(pace) for pace in self._paces.values()))

    def _count(self, pace: _Pace, grant: KeyGrant) -> None:
        kind = pace.last.refusal_kind
        if kind is None:
            return
        n_before = pace.untold.count if pace.untold is not None else 0
        pace.untold = Untold(grant, kind, n_before + 1, now())
        if pace.telling is None or pace.telling.done():
            pace.telling = asyncio.create_task(self._tell_later(pace))

    async def _tell_later(self, pace: _Pace) -> None:
        while pace.untold is not None:
            await asyncio.sleep(TELL_SEC)
            await self._tell_now(pace)

    async def _tell_now(self, pace: _Pace) -> None:
        untold, pace.untold = pace.untold, None
        if untold is None:
            return
        try:
            await self._tell(untold)
        except Denial:
            later = pace.untold or replace(untold, count=0)
            pace.untold = replace(later, count=untold.count + later.count)

    def _make_room(self) -> None:
        """Forget keys that were not refused for long, and whatever is oldest where that is not enough."""
        if len(self._paces) < MAX_KEYS:
            return
        for key_id, pace in list(self._paces.items()):
            pace.regain()
            is_idle = pace.n_waiting == 0 and pace.untold is None
            if is_idle and (pace.left >= FREE or len(self._paces) >= MAX_KEYS):
                del self._paces[key_id]
