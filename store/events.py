"""The job stream: appends that are gapless, ordered by commit and safe to repeat; and tailing reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from domain.events import NewEvent
from store.database import Database

CHANNEL = "job_events"
"""NOTIFY channel; the payload is the job id."""


_LOCK = "SELECT last_seq FROM jobs WHERE id = $1 FOR UPDATE"
_APPEND = """
WITH fresh AS (
  SELECT e.key, e.type, e.payload, row_number() OVER (ORDER BY e.n) AS n
  FROM unnest($2::text[], $3::text[], $4::jsonb[]) WITH ORDINALITY AS e (key, type, payload, n)
  WHERE NOT EXISTS (SELECT FROM job_events known WHERE known.job_id = $1 AND known.key = e.key)
), added AS (
  INSERT INTO job_events (job_id, seq, key, type, payload, at)
  SELECT $1, $5 + n, key, type, payload, now() FROM fresh
), counted AS (
  UPDATE jobs SET last_seq = $5 + (SELECT count(*) FROM fresh) WHERE id = $1
)
SELECT pg_notify($6, $1) WHERE EXISTS (SELECT FROM fresh)
"""


async def append_events(connection: Any, job_id: str, events: Sequence[NewEvent]) -> None:
    """Number and store the events whose keys the job does not have yet; wakes the streams at commit.

    Must run in a transaction. Locks the job's row first, in a statement of its own, so that the second
    sees all that earlier holders of the lock wrote: sequence order is commit order.
    """
    last = await connection.fetchval(_LOCK, job_id)
    if last is None or not events:
        return
    keys, types, payloads = zip(*((e.key, e.type.value, e.data) for e in events), strict=True)
    await connection.execute(_APPEND, job_id, keys, types, payloads, last, CHANNEL)


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
