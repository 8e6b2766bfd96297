"""Wakes the event streams of this process when a job has new events: one LISTEN for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator
from contextlib import contextmanager

from store.events import CHANNEL
from store.listening import listen
from store.outages import is_database_away

_log = logging.getLogger(__name__)
RECONNECT_SEC = 1.0


class Feed:
    """`subscribe(job_id)` gives an event that is set at each NOTIFY of the job.

    A NOTIFY that is missed while the connection is down costs nothing: after each reconnect everyone is
    woken, and a reader always looks before it waits.
    """

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._is_closing = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to listen, in the background."""
        self._task = asyncio.create_task(self._listen(), name="feed")

    def end_streams(self) -> None:
        """Wake everyone for the last time: `is_closing` tells them why."""
        self._is_closing = True
        self._wake_all()

    async def close(self) -> None:
        """Stop listening."""
        self.end_streams()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def is_closing(self) -> bool:
        """The process is about to end: streams end too, and clients resume elsewhere."""
        return self._is_closing

    @contextmanager
    def subscribe(self, job_id: str) -> Generator[asyncio.Event]:
        """An event of the subscriber's own; it clears it before it looks."""
        event = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(event)
        try:
            yield event
        finally:
            waiting = self._waiting[job_id]
            waiting.discard(event)
            if not waiting:
                del self._waiting[job_id]

    async def _listen(self) -> None:
        while True:
            try:
                await listen(self._url, CHANNEL, self._wake_all, self._notified)
            except Exception as error:
                if not is_database_away(error):
                    raise
                _log.warning("event feed cannot reach the database: %s", error)
            await asyncio.sleep(RECONNECT_SEC)

    def _notified(self, job_id: str) -> None:
        for event in self._waiting.get(job_id, ()):
            event.set()

    def _wake_all(self) -> None:
        for events in self._waiting.values():
            for event in events:
                event.set()
