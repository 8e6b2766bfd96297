"""A job's events as a server-sent stream (contract §1.16): replay from any point, then live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from api.feeds import Feed
from domain.errors import ApiError
from domain.events import TERMINAL_EVENTS
from store.database import Database
from store.events import last_event, read_events
from store.outages import is_database_away

# The client gives up after 60 s of silence and asks for a sign at least every 15.
HEARTBEAT_SEC = 10.0
BATCH_EVENTS = 500
# Lines that begin with a colon are the only heartbeat that no client takes for an event.
_HEARTBEAT = b": still here\n\n"
_TERMINAL = frozenset(event.value for event in TERMINAL_EVENTS)


def parse_last_event_id(text: str | None) -> int:
    """Where to go on from; -1 without the header. Raises `invalid_after`."""
    if text is None or not text.strip():
        return -1
    if not text.strip().isascii() or not text.strip().isdigit() or len(text.strip()) > 18:
        message = f"Last-Event-ID: a whole number, not {text[:40]}."
        raise ApiError("invalid_after", message, param="Last-Event-ID")
    return int(text)


def event_stream(chunks: AsyncIterator[bytes]) -> StreamingResponse:
    """The response of a stream; nothing on the way may buffer or store it."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(chunks, media_type="text/event-stream", headers=headers)


async def job_events(db: Database, feed: Feed, job_id: str, after_seq: int) -> AsyncIterator[bytes]:
    """Frames of events after `after_seq` until a terminal one, or until this process ends.

    While the database is away the stream stays open and only beats.
    """
    with feed.subscribe(job_id) as woken:
        yield _HEARTBEAT
        while not feed.is_closing:
            woken.clear()
            rows, is_over = await _read(db, job_id, after_seq)
            if is_over:
                return
            for row in rows:
                after_seq = row["seq"]
                yield _frame(row)
                if row["type"] in _TERMINAL:
                    return
            if len(rows) < BATCH_EVENTS and not await _is_woken(woken):
                yield _HEARTBEAT


async def _read(db: Database, job_id: str, after_seq: int) -> tuple[list[Any], bool]:
    """The next events, and whether there will never be any: the terminal one was seen before."""
    try:
        rows = await read_events(db, job_id, after_seq, BATCH_EVENTS)
        if rows:
            return rows, False
        last = await last_event(db, job_id)
        return [], last is None or (last["type"] in _TERMINAL and last["seq"] <= after_seq)
    except Exception as error:
        if not is_database_away(error):
            raise
        return [], False


async def _is_woken(woken: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(woken.wait(), HEARTBEAT_SEC)
    except TimeoutError:
        return False
    return True


def _frame(row: Any) -> bytes:
    data = to_json(row["payload"], inf_nan_mode="null")
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (row["seq"], row["type"].encode(), data)
