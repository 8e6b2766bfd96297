"""Verbs of jobs and trials: cancel, pause, stop, delete. Each is one transaction with its intents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from domain.errors import ApiError
from domain.jobs import JobPlan
from domain.vocabulary import JOB_TERMINAL, TRIAL_TERMINAL, JobStatus, TrialStatus
from store.accounts import Caller
from store.archives import forget_archives
from store.blobs import Blobs
from store.database import Database
from store.intents import IntentKind, add_intent
from store.job_reads import find_job
from store.record import cancel_job

_TRIALS_AT_ONCE = 32
_LOCK_JOBS_OF = """
SELECT FROM jobs WHERE id IN (SELECT job_id FROM trials WHERE id = ANY($1)) ORDER BY id FOR UPDATE
"""
_VISIBLE_TRIALS = """
SELECT t.id, t.job_id, t.index, t.status FROM trials t JOIN jobs j ON j.id = t.job_id
WHERE t.id = ANY($1) AND (j.owner_user_id = $2 OR j.org_id = ANY($3))
ORDER BY t.job_id, t.index
"""
_LIVE_REGRADES = """
SELECT id FROM jobs WHERE source_job_id = $1 AND plan -> 'derivation' ->> 'action' = 'regrade'
  AND NOT (status = ANY($2)) ORDER BY started_at, id
"""


@dataclass(frozen=True)
class StopOutcome:
    """The requested ids, each in exactly one list."""

    stopped: list[str]
    already_terminal: list[str]
    not_found: list[str]


async def request_cancel(db: Database, caller: Caller, job_id: str) -> None:
    """CANCELLING at once, whatever Temporal does; a terminal or cancelling job stays as it is."""
    await find_job(db, caller, job_id)
    async with db.transaction() as connection:
        status = await connection.fetchval("SELECT status FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        if status not in (JobStatus.QUEUED, JobStatus.RUNNING):
            return
        await cancel_job(connection, job_id)
        await add_intent(connection, IntentKind.CANCEL_JOB, job_id)


async def request_pause(db: Database, caller: Caller, job_id: str, *, is_paused: bool) -> None:
    """No further trial starts, or again as before; those that run are not touched.

    A job that is terminal or cancelling stays as it is, like one that is so already.
    """
    await find_job(db, caller, job_id)
    async with db.transaction() as connection:
        row = await connection.fetchrow("SELECT status, paused_at FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        if row is None or row["status"] not in (JobStatus.QUEUED, JobStatus.RUNNING):
            return
        if (row["paused_at"] is not None) == is_paused:
            return
        await connection.execute(
            "UPDATE jobs SET paused_at = CASE WHEN $2 THEN now() END, updated_at = now() WHERE id = $1",
            job_id,
            is_paused,
        )
        await add_intent(connection, IntentKind.PAUSE_JOB, job_id, {"is_paused": is_paused})


async def request_stop(db: Database, caller: Caller, trial_ids: Sequence[str]) -> StopOutcome:
    """Ask for the end of live trials, job by job; those of others are not found."""
    asked = list(dict.fromkeys(trial_ids))
    async with db.transaction() as connection:
        # Jobs before trials, as everywhere: a cancel at the same time waits instead of deadlocking.
        await connection.execute(_LOCK_JOBS_OF, asked)
        rows = await connection.fetch(_VISIBLE_TRIALS, asked, caller.user_id, caller.org_ids)
        live = [row for row in rows if TrialStatus(row["status"]) not in TRIAL_TERMINAL]
        by_job: dict[str, list[int]] = {}
        for row in live:
            by_job.setdefault(row["job_id"], []).append(row["index"])
        for job_id, indexes in by_job.items():
            await add_intent(connection, IntentKind.STOP_TRIALS, job_id, {"indexes": indexes})
        await connection.execute(
            "UPDATE trials SET stop_requested_at = coalesce(stop_requested_at, now()) WHERE id = ANY($1)",
            [row["id"] for row in live],
        )
    found = {row["id"] for row in rows}
    stopped = {row["id"] for row in live}
    return StopOutcome(
        stopped=[trial_id for trial_id in asked if trial_id in stopped],
        already_terminal=[trial_id for trial_id in asked if trial_id in found - stopped],
        not_found=[trial_id for trial_id in asked if trial_id not in found],
    )


@dataclass(frozen=True)
class DeletedJob:
    """What is left of one: blobs. All below a trial's prefix are its own, whatever row named them."""

    trial_ids: list[str]
    archive_keys: list[str]

    async def delete_blobs(self, blobs: Blobs) -> None:
        """Harmless to repeat."""
        for start in range(0, len(self.trial_ids), _TRIALS_AT_ONCE):
            some = self.trial_ids[start : start + _TRIALS_AT_ONCE]
            await asyncio.gather(*(blobs.delete_below(f"trials/{trial_id}/") for trial_id in some))
        for key in self.archive_keys:
            await blobs.delete(key)


async def delete_job(db: Database, caller: Caller, job_id: str) -> DeletedJob:
    """Remove a terminal job with its trials; its blobs are the caller's to delete after.

    Raises `org_forbidden` for one who is not its creator, `job_not_terminal` also while a regrade of it is
    under way, and `job_not_found` for a regrade, which is not deleted here (contract §6.5).
    """
    job = await find_job(db, caller, job_id)
    if JobPlan.model_validate(job["plan"]).is_regrade:
        raise ApiError("job_not_found", f"Job {job_id} is a regrade: it is kept.")
    if job["owner_user_id"] != caller.user_id:
        raise ApiError("org_forbidden", "Only a job's creator may delete it.")
    async with db.transaction() as connection:
        status = await connection.fetchval("SELECT status FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        if status is None:
            raise ApiError("job_not_found", f"No job {job_id}.")
        if not JobStatus(status).is_terminal:
            raise ApiError("job_not_terminal", f"The job is {status}; cancel it first.")
        await _refuse_live_regrades(connection, job_id)
        trial_ids = [
            row["id"] for row in await connection.fetch("SELECT id FROM trials WHERE job_id = $1", job_id)
        ]
        archive_keys = await forget_archives(connection, [job_id, *trial_ids])
        await connection.execute("DELETE FROM jobs WHERE id = $1", job_id)
    return DeletedJob(trial_ids, archive_keys)


async def _refuse_live_regrades(connection: Any, job_id: str) -> None:
    """A regrade under way reads what its source kept."""
    rows = await connection.fetch(_LIVE_REGRADES, job_id, [status.value for status in JOB_TERMINAL])
    if rows:
        job_ids = [row["id"] for row in rows]
        message = f"A regrade of the job is under way: wait for {', '.join(job_ids)}, or cancel it."
        raise ApiError("job_not_terminal", message, details={"regrade_job_ids": job_ids})
