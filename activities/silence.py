"""The no-output watchdog: an agent that writes nothing is told of on its trial's record, and never killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta

import structlog

from activities.failures import is_transient
from store.database import Database, now
from store.fences import Fence
from store.silence import note_silence, silent_since

log = structlog.get_logger()

LOOKS = 20  # in the time after which silence is told: so exact it is, and as soon it is taken back


class Silence:
    """Since when a process has written nothing, and what of that its trial's record says."""

    def __init__(self, told: datetime | None) -> None:
        self._last = told or now()
        self._told = told

    def heard(self) -> None:
        """Output came."""
        self._last = now()

    async def tell(self, db: Database, fence: Fence, after: timedelta) -> None:
        """Bring the record up to date, where it is not."""
        since = self._last if now() - self._last >= after else None
        if since != self._told:
            await note_silence(db, fence, since)
            self._told = since

    async def end(self, db: Database, fence: Fence) -> None:
        """The process is over: it is not silent any more."""
        if self._told is not None:
            await note_silence(db, fence, None)


@asynccontextmanager
async def watching_silence(db: Database, fence: Fence, after_sec: float) -> AsyncIterator[Silence]:
    """Tell while the block runs whether nothing was `heard` for so long.

    A follower that takes over goes on with what the record says, else it counts from its own beginning.
    """
    silence = Silence(await silent_since(db, fence.trial_id))
    watching = asyncio.create_task(_watch(silence, db, fence, after_sec))
    try:
        yield silence
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
    await silence.end(db, fence)


async def _watch(silence: Silence, db: Database, fence: Fence, after_sec: float) -> None:
    while True:
        await asyncio.sleep(after_sec / LOOKS)
        try:
            await silence.tell(db, fence, timedelta(seconds=after_sec))
        except Exception as error:
            # The next look says it; a follower that was overtaken hears so from its own writes.
            if not is_transient(error):
                log.warning("silence could not be told", trial=fence.trial_id, error=repr(error))
