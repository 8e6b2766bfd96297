"""Downloads that are built once: their state, and everything that is read to build them.

An archive belongs to an *edition* of its subject: a digest of what can still change on a settled trial or
a terminal job (a retry, a spend that became final). When the edition moves on, what was built before is
not found any more and is built anew.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from store.database import Database
from store.intents import IntentKind, add_intent

TRIALS_AT_ONCE = 200
ROWS_AT_ONCE = 500

_EDITIONS = {
    "job": "SELECT md5(concat_ws('/', status, last_seq, totals, by_status)) FROM jobs WHERE id = $1",
    "trial": "SELECT md5(concat_ws('/', status, attempt_number, result, retries)) FROM trials WHERE id = $1",
}
# Held until the row is written: who deletes the subject waits, and forgets the row too.
_LOCK_SUBJECT = {
    "job": "SELECT true FROM jobs WHERE id = $1 FOR SHARE",
    "trial": "SELECT true FROM jobs WHERE id = (SELECT job_id FROM trials WHERE id = $1) FOR SHARE",
}
_BUILDING = """
INSERT INTO archives (kind, subject_id, state, updated_at) VALUES ($1, $2, 'building', now())
ON CONFLICT (kind, subject_id) DO UPDATE SET state = 'building', failure = NULL, updated_at = now()
RETURNING *
"""
_READY = """
INSERT INTO archives (kind, subject_id, state, blob_key, sha256, size_bytes, updated_at)
VALUES ($1, $2, 'ready', $3, $4, $5, now())
ON CONFLICT (kind, subject_id) DO UPDATE SET state = 'ready', blob_key = excluded.blob_key,
  sha256 = excluded.sha256, size_bytes = excluded.size_bytes, failure = NULL, updated_at = now()
"""
_FAILED = """
INSERT INTO archives (kind, subject_id, state, failure, updated_at) VALUES ($1, $2, 'failed', $3, now())
ON CONFLICT (kind, subject_id) DO UPDATE SET state = 'failed', failure = excluded.failure, updated_at = now()
"""
_JOB = "SELECT j.*, o.slug AS org FROM jobs j JOIN organizations o ON o.id = j.org_id WHERE j.id = $1"
_TRIALS = """
SELECT t.*, v.version AS dataset_version, d.digest AS task_digest, d.task -> 'artifacts' AS artifacts
FROM trials t LEFT JOIN dataset_versions v ON v.id = t.version_id
LEFT JOIN dataset_tasks d ON d.version_id = t.version_id AND d.task_name = t.task_name
"""
_TRIAL_EVENTS = """
SELECT e.at, e.type, e.payload FROM job_events e
WHERE e.job_id = $1 AND e.type LIKE 'trial.%' AND e.payload ->> 'trial_id' = ANY($2) ORDER BY e.seq
"""
_TRACES = """
SELECT e.trial_id, e.seq, e.type, e.data FROM trace_events e
JOIN trials t ON t.id = e.trial_id AND t.attempt_number = e.attempt_number
WHERE e.trial_id = ANY($1) ORDER BY e.trial_id, e.seq
"""


def blob_key(kind: str, subject_id: str, edition: str) -> str:
    """Where the archive of an edition is kept."""
    return f"archives/{kind}/{subject_id}/{edition}.tar.gz"


async def edition_of(db: Database, kind: str, subject_id: str) -> str | None:
    """The subject's present edition; None when it does not exist."""
    pool = await db.pool()
    return await pool.fetchval(_EDITIONS[kind], subject_id)


async def read_archive(db: Database, kind: str, subject_id: str) -> Any:
    """The archive's row: `state`, and by it `blob_key`, `sha256`, `size_bytes` or `failure`.

    None when none was ever asked for, or the one that is ready is of an earlier edition.
    """
    pool = await db.pool()
    return await _read(pool, kind, subject_id)


async def ask_for_archive(db: Database, kind: str, subject_id: str) -> Any:
    """The archive's row: `ready`, else `building`, asked for by an intent; None for a deleted subject.

    One whose build failed is built again. Asking while a build is under way is harmless, and revives one
    whose workflow an operator ended.
    """
    async with db.transaction() as connection:
        row = await _read(connection, kind, subject_id)
        if row is not None and row["state"] == "ready":
            return row
        if not await connection.fetchval(_LOCK_SUBJECT[kind], subject_id):
            return None
        await add_intent(connection, IntentKind.BUILD_ARCHIVE, subject_id, {"kind": kind})
        return await connection.fetchrow(_BUILDING, kind, subject_id)


async def _read(connection: Any, kind: str, subject_id: str) -> Any:
    row = await connection.fetchrow(
        "SELECT * FROM archives WHERE kind = $1 AND subject_id = $2", kind, subject_id
    )
    if row is None or row["state"] != "ready":
        return row
    edition = await connection.fetchval(_EDITIONS[kind], subject_id)
    is_current = edition is not None and row["blob_key"] == blob_key(kind, subject_id, edition)
    return row if is_current else None


async def mark_ready(db: Database, kind: str, subject_id: str, blob: tuple[str, str, int]) -> str | None:
    """The build is done; `blob` is key, SHA-256 in hex and length. Returns the key that nothing names now:
    the one that it supersedes, or its own when the subject was deleted meanwhile."""
    async with db.transaction() as connection:
        if not await connection.fetchval(_LOCK_SUBJECT[kind], subject_id):
            return blob[0]
        earlier = await connection.fetchval(
            "SELECT blob_key FROM archives WHERE kind = $1 AND subject_id = $2 FOR UPDATE", kind, subject_id
        )
        await connection.execute(_READY, kind, subject_id, *blob)
    return None if earlier == blob[0] else earlier


async def mark_failed(db: Database, kind: str, subject_id: str, failure: str) -> None:
    """The build cannot be done, and why."""
    pool = await db.pool()
    await pool.execute(_FAILED, kind, subject_id, failure)


async def forget_archives(connection: Any, subject_ids: Sequence[str]) -> list[str]:
    """Drop the archives of deleted jobs and trials; returns the keys of their blobs."""
    rows = await connection.fetch(
        "DELETE FROM archives WHERE subject_id = ANY($1) RETURNING blob_key", subject_ids
    )
    return [row["blob_key"] for row in rows if row["blob_key"] is not None]


async def read_job(db: Database, job_id: str) -> Any:
    """The job's row with its `org`; None when it was deleted."""
    pool = await db.pool()
    return await pool.fetchrow(_JOB, job_id)


async def read_groups(db: Database, job_id: str) -> list[Any]:
    """Rows of `job_groups`, in the order of the plan."""
    pool = await db.pool()
    return await pool.fetch("SELECT * FROM job_groups WHERE job_id = $1 ORDER BY arm_index, source", job_id)


async def read_trial(db: Database, trial_id: str) -> Any:
    """One trial's row with `dataset_version`, `task_digest` and `artifacts`; None when it was deleted."""
    pool = await db.pool()
    return await pool.fetchrow(f"{_TRIALS} WHERE t.id = $1", trial_id)


async def read_trials(db: Database, job_id: str) -> AsyncIterator[list[Any]]:
    """All of a job's trials as `read_trial` gives them, by index, some at a time."""
    pool, after = await db.pool(), -1
    query = f"{_TRIALS} WHERE t.job_id = $1 AND t.index > $2 ORDER BY t.index LIMIT $3"
    while rows := await pool.fetch(query, job_id, after, TRIALS_AT_ONCE):
        yield rows
        after = rows[-1]["index"]


async def read_files(db: Database, trial_ids: Sequence[str]) -> list[Any]:
    """The kept files of each trial's newest attempt number, by trial and path."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT f.* FROM trial_files f JOIN trials t ON t.id = f.trial_id"
        " AND t.attempt_number = f.attempt_number WHERE f.trial_id = ANY($1) ORDER BY f.trial_id, f.path",
        trial_ids,
    )


async def read_trial_events(db: Database, job_id: str, trial_ids: Sequence[str]) -> list[Any]:
    """Events about the trials, in order: rows of `at`, `type`, `payload`."""
    pool = await db.pool()
    return await pool.fetch(_TRIAL_EVENTS, job_id, trial_ids)


async def stream_events(db: Database, job_id: str) -> AsyncIterator[Any]:
    """Every event of a job, in order: rows of `at`, `type`, `payload`."""
    async with db.transaction() as connection:
        query = "SELECT at, type, payload FROM job_events WHERE job_id = $1 ORDER BY seq"
        async for row in connection.cursor(query, job_id, prefetch=ROWS_AT_ONCE):
            yield row


async def stream_traces(db: Database, trial_ids: Sequence[str]) -> AsyncIterator[list[Any]]:
    """The parsed traces of the trials' newest attempt numbers, by trial and seq, some rows at a time.

    Rows of `trial_id`, `seq`, `type`, `data`.
    """
    async with db.transaction() as connection:
        cursor = await connection.cursor(_TRACES, trial_ids)
        while rows := await cursor.fetch(ROWS_AT_ONCE):
            yield rows
