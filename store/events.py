"""The job stream: appends that are gapless, ordered by commit and safe to repeat; and tailing reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from domain.events import NewEvent

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
