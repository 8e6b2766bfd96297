"""The job stream: appends that are gapless, ordered by commit and safe to repeat; and tailing reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from domain.events import NewEvent
from store.database import Database

CHANNEL = "job_events"
"""NOTIFY channel; the payload is the job id."""


async def append_events(connection: Any, job_id: str, events: Sequence[NewEvent]) -> None:
    """Number and store the events whose keys the job does not have yet; wakes the streams at commit.

    Must run in a transaction. Locks the job's row: sequence order is commit order.
    """
    last = await connection.fetchval("SELECT last_seq FROM jobs WHERE id = $1 FOR UPDATE", job_id)
    if last is None or not events:
        return
    known = await connection.fetch(
        "SELECT key FROM job_events WHERE job_id = $1 AND key = ANY($2)", job_id, [e.key for e in events]
    )
    seen = {row["key"] for row in known}
    fresh = [event for event in events if event.key not in seen]
    if not fresh:
        return
    rows = [(job_id, last + n, e.key, e.type.value, e.data) for n, e in enumerate(fresh, start=1)]
    await connection.executemany(
        "INSERT INTO job_events (job_id, seq, key, type, payload, at) VALUES ($1, $2, $3, $4, $5, now())",
        rows,
    )
    await connection.execute("UPDATE jobs SET last_seq = $2 WHERE id = $1", job_id, last + len(fresh))
    await connection.execute("SELECT pg_notify($1, $2)", CHANNEL, job_id)


async def read_events(db: Database, job_id: str, after_seq: int, limit: int) -> list[Any]:
    """Events strictly after `after_seq`, in order: rows of `seq`, `type`, `payload`."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT seq, type, payload FROM job_events WHERE job_id = $1 AND seq > $2 ORDER BY seq LIMIT $3",
        job_id,
        after_seq,
        limit,
    )


async def last_event(db: Database, job_id: str) -> Any:
    """The job's newest event: `seq` and `type`; None when it has none or was deleted."""
    pool = await db.pool()
    return await pool.fetchrow(
        "SELECT seq, type FROM job_events WHERE job_id = $1 ORDER BY seq DESC LIMIT 1", job_id
    )
