"""What the reaper looks for in the store: rows that nobody will come back to, and what is still in use."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from domain.reaping import GRACE, LeaseState
from domain.vocabulary import JOB_TERMINAL, TRIAL_TERMINAL
from store.database import Database

INTENTS_KEPT = timedelta(days=7)
UPLOAD_IDLE = timedelta(days=1)
CALL_GRACE = timedelta(hours=2)
"""Longer than any call under way: a gateway that comes back books its own. A later measure puts it right."""
SETTLED_GRACE = timedelta(minutes=10)
_TERMINAL_TRIALS = [status.value for status in TRIAL_TERMINAL]
_TERMINAL_JOBS = [status.value for status in JOB_TERMINAL]

_LEASES = """
SELECT b.name, b.host_id, b.provider, b.state, b.gone_at,
  coalesce(t.finished_at < now() - $1::interval,
           b.reserved_at < now() - $1::interval AND (t.id IS NULL OR b.attempt_number < t.attempt_number)
  ) AS is_over
FROM box_leases b LEFT JOIN trials t ON t.id = b.trial_id
"""
_STALE_KEYS = """
SELECT k.id, k.role, k.trial_id, k.attempt_number FROM gateway_keys k LEFT JOIN trials t ON t.id = k.trial_id
WHERE k.revoked_at IS NULL AND k.expires_at > now() AND k.role <> 'analyzer'
  AND k.created_at < now() - $1::interval
  AND (t.id IS NULL OR t.finished_at < now() - $1::interval OR k.attempt_number < t.attempt_number)
LIMIT 1000
"""
_LEFT_CALLS = """
SELECT gateway_id, count(*) AS n FROM gateway_calls WHERE status = 'open' AND started_at < $1 GROUP BY 1
"""
_LEFT_STREAMS = """
SELECT c.trial_id, c.attempt_number, t.job_id, t.attempt_number > c.attempt_number AS is_retired
FROM (SELECT DISTINCT trial_id, attempt_number FROM stream_chunks) c JOIN trials t ON t.id = c.trial_id
WHERE t.finished_at < now() - $1::interval OR t.attempt_number > c.attempt_number
LIMIT 200
"""
_DEAD_SESSIONS = """
SELECT id FROM upload_sessions WHERE id = ANY($1) AND (state = 'open' OR updated_at > now() - $2::interval)
"""
_IMAGES_IN_USE = """
SELECT DISTINCT d.images -> $1 ->> 'id' AS id FROM dataset_tasks d
JOIN trials t ON t.version_id = d.version_id AND t.task_name = d.task_name
WHERE t.finished_at IS NULL AND d.images ? $1
"""
_IMAGE_USES = """
SELECT d.images -> $1 ->> 'id' AS id, bool_or(v.state = 'READY' AND v.replaced_at IS NULL) AS is_wanted,
  max(greatest(v.created_at, t.used_at)) AS used_at
FROM dataset_tasks d JOIN dataset_versions v ON v.id = d.version_id
LEFT JOIN (SELECT version_id, task_name, max(coalesce(finished_at, started_at)) AS used_at
           FROM trials GROUP BY 1, 2) t ON t.version_id = d.version_id AND t.task_name = d.task_name
WHERE d.images ? $1 GROUP BY 1
"""


async def lease_states(db: Database, names: Collection[str]) -> dict[str, LeaseState]:
    """The leases of those boxes that ever had one, by name."""
    pool = await db.pool()
    rows = await pool.fetch(f"{_LEASES} WHERE b.name = ANY($2)", GRACE, list(names))
    return {row["name"]: _lease(row) for row in rows}


async def over_leases(db: Database, host_id: str) -> list[Any]:
    """Leases of this host that still hold room for a trial that is over: `name`, `provider`."""
    pool = await db.pool()
    rows = await pool.fetch(f"{_LEASES} WHERE b.host_id = $2 AND b.state <> 'gone'", GRACE, host_id)
    return [row for row in rows if row["is_over"]]


@asynccontextmanager
async def holding_lease(db: Database, name: str) -> AsyncIterator[LeaseState | None]:
    """The lease of a box, which nobody can take up again meanwhile; None for a box without one."""
    async with db.transaction() as connection:
        row = await connection.fetchrow(f"{_LEASES} WHERE b.name = $2 FOR UPDATE OF b", GRACE, name)
        yield None if row is None else _lease(row)


def _lease(row: Any) -> LeaseState:
    return LeaseState(row["state"], row["gone_at"], bool(row["is_over"]))


async def stale_keys(db: Database) -> list[Any]:
    """Living keys of attempts that are over: `id`, `role`, `trial_id`, `attempt_number`.

    An analyzer's key is made for a settled trial, and dies by itself.
    """
    pool = await db.pool()
    return await pool.fetch(_STALE_KEYS, GRACE)


async def left_calls(db: Database, before: datetime) -> list[Any]:
    """Calls that are open since before: `gateway_id` and their number `n`."""
    pool = await db.pool()
    return await pool.fetch(_LEFT_CALLS, before)


async def left_streams(db: Database) -> list[Any]:
    """Attempts that are over and whose output is still in pieces."""
    pool = await db.pool()
    return await pool.fetch(_LEFT_STREAMS, SETTLED_GRACE)


async def idle_sessions(db: Database) -> list[Any]:
    """Open upload sessions that nobody has continued for a day: whole rows."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT * FROM upload_sessions WHERE state = 'open' AND updated_at < now() - $1::interval",
        UPLOAD_IDLE,
    )


async def needed_sessions(db: Database, session_ids: Collection[str]) -> set[str]:
    """Those whose chunks may still be read."""
    pool = await db.pool()
    rows = await pool.fetch(_DEAD_SESSIONS, list(session_ids), SETTLED_GRACE)
    return {row["id"] for row in rows}


async def count_old_intents(db: Database) -> int:
    """How many were delivered longer than `INTENTS_KEPT` ago."""
    pool = await db.pool()
    return int(
        await pool.fetchval(
            "SELECT count(*) FROM intents WHERE delivered_at < now() - $1::interval", INTENTS_KEPT
        )
    )


async def forget_old_intents(db: Database) -> None:
    """Remove them."""
    pool = await db.pool()
    await pool.execute("DELETE FROM intents WHERE delivered_at < now() - $1::interval", INTENTS_KEPT)


async def images_in_use(db: Database, provider: str) -> set[str]:
    """Ids of the images of tasks that a trial is yet to end on."""
    pool = await db.pool()
    return {row["id"] for row in await pool.fetch(_IMAGES_IN_USE, provider)}


async def image_uses(db: Database, provider: str) -> dict[str, Any]:
    """By image id: `used_at` by a trial or a publish, and `is_wanted` by a version that can be run."""
    pool = await db.pool()
    return {row["id"]: row for row in await pool.fetch(_IMAGE_USES, provider)}


async def oldest_live_attempt(db: Database) -> datetime | None:
    """Since when the longest-running live trial runs."""
    pool = await db.pool()
    return await pool.fetchval("SELECT min(started_at) FROM trials WHERE finished_at IS NULL")


async def live_jobs(db: Database) -> list[Any]:
    """Jobs that should have a workflow by now: `id`, `workflow_id`; not those with a word on its way."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT id, workflow_id FROM jobs j WHERE NOT (status = ANY($1))"
        " AND updated_at < now() - $2::interval AND NOT EXISTS ("
        "  SELECT FROM intents i WHERE i.subject_id = j.id AND i.delivered_at IS NULL)",
        _TERMINAL_JOBS,
        GRACE,
    )


async def live_imports(db: Database) -> list[str]:
    """Received datasets that should have a workflow by now, by their import's id; see `live_jobs`."""
    pool = await db.pool()
    rows = await pool.fetch(
        "SELECT id FROM dataset_imports d WHERE status IN ('QUEUED', 'RUNNING') AND NOT is_receiving"
        " AND updated_at < now() - $1::interval AND NOT EXISTS ("
        "  SELECT FROM intents i WHERE i.subject_id = d.id AND i.delivered_at IS NULL)",
        GRACE,
    )
    return [row["id"] for row in rows]


async def live_trials(db: Database, trial_id: str | None = None) -> list[Any]:
    """Trials placed a while ago: `id`, `job_id`, `index`, the job's `workflow_id`; the one that is named."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT t.id, t.job_id, t.index, j.workflow_id FROM trials t JOIN jobs j ON j.id = t.job_id"
        " WHERE NOT (t.status = ANY($1)) AND t.started_at < now() - $2::interval"
        " AND ($3::text IS NULL OR t.id = $3)",
        _TERMINAL_TRIALS,
        GRACE,
        trial_id,
    )


async def over_trials(db: Database, trial_ids: Collection[str]) -> dict[str, datetime | None]:
    """Of these trials, those that settled a while ago, with when, and those that are no more, with None."""
    pool = await db.pool()
    rows = await pool.fetch("SELECT id, finished_at FROM trials WHERE id = ANY($1)", list(trial_ids))
    return _over({row["id"]: row["finished_at"] for row in rows}, trial_ids)


async def over_jobs(db: Database, workflow_ids: Collection[str]) -> dict[str, datetime | None]:
    """The same of jobs, by their workflows."""
    pool = await db.pool()
    rows = await pool.fetch(
        "SELECT workflow_id, finished_at FROM jobs WHERE workflow_id = ANY($1)", list(workflow_ids)
    )
    return _over({row["workflow_id"]: row["finished_at"] for row in rows}, workflow_ids)


def _over(finished: dict[str, datetime | None], asked: Collection[str]) -> dict[str, datetime | None]:
    return {each: finished.get(each) for each in asked if each not in finished or finished[each] is not None}
