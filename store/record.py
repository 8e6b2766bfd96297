"""What activities tell the store of trials on their way and of jobs; the settle is in `settle.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from domain import events
from domain.events import NewEvent, TrialName
from domain.stats import GroupSums, pass_at_k
from domain.vocabulary import JOB_TERMINAL, ExceptionType, JobStatus, TrialStatus
from store.database import Database, now
from store.events import append_events
from store.fences import Fence, is_settled, lock_trial

STOPPED_MESSAGE = "The trial was stopped."


@dataclass(frozen=True)
class PhaseChange:
    """What a phase's beginning or end changes: wire members of the trial, its status, its event."""

    members: Mapping[str, Any] = field(default_factory=dict[str, Any])
    status: TrialStatus | None = None
    event: NewEvent | None = None
    sandbox_id: str | None = None


def iso(at: datetime) -> str:
    """A point in time as the wire writes it."""
    return at.isoformat().replace("+00:00", "Z")


def exception_info(exception: tuple[str, str] | None, at: datetime) -> dict[str, Any] | None:
    """ExceptionInfo of contract 3.8."""
    if exception is None:
        return None
    kind, message = exception
    return {
        "exception_type": str(kind),
        "exception_message": message,
        "exception_traceback": "",
        "occurred_at": iso(at),
    }


async def enter_phase(db: Database, fence: Fence, change: PhaseChange | None = None) -> bool:
    """Take the fence for a phase and record what changes; False when the trial is settled or deleted."""
    change = change or PhaseChange()
    if change.status is None and change.event is None:
        return await _enter_quietly(db, fence, change)
    async with db.transaction() as connection:
        row = await lock_trial(connection, fence)
        if row is None or is_settled(row):
            return False
        await connection.execute(
            "UPDATE trials SET phase = $2, result = result || $3, sandbox_id = coalesce($4, sandbox_id)"
            " WHERE id = $1",
            fence.trial_id,
            fence.phase.value,
            dict(change.members),
            change.sandbox_id,
        )
        if change.status is not None and change.status != row["status"]:
            await move_status(connection, row, change.status)
        if change.event is not None:
            await append_events(connection, fence.job_id, [change.event])
    return True


_ENTER = """
UPDATE trials SET fence_phase = $3, fence_try = $4, phase = $5, result = result || $6,
  sandbox_id = coalesce($7, sandbox_id)
WHERE id = $1 AND (attempt_number, fence_phase, fence_try) <= ($2::int, $3::int, $4::int)
  AND finished_at IS NULL
RETURNING 1
"""


async def _enter_quietly(db: Database, fence: Fence, change: PhaseChange) -> bool:
    """A phase that no stream and no tally shows: one statement, and the job's row is left alone."""
    pool = await db.pool()
    entered = await pool.fetchval(
        _ENTER,
        fence.trial_id,
        fence.attempt_number,
        fence.rank,
        fence.try_number,
        fence.phase.value,
        dict(change.members),
        change.sandbox_id,
    )
    if entered is None:
        async with db.transaction() as connection:
            row = await lock_trial(connection, fence)  # tells a later writer from a settled trial
            return row is not None and not is_settled(row)
    return True


_MOVE_TALLY = """
UPDATE jobs SET updated_at = now(), by_status = by_status || jsonb_build_object(
  $2::text, coalesce((by_status ->> $2)::int, 0) - 1, $3::text, coalesce((by_status ->> $3)::int, 0) + 1)
WHERE id = $1
"""


async def move_status(connection: Any, row: Any, target: TrialStatus) -> None:
    """Change a locked trial's status and its job's tally with it."""
    if target == row["status"]:
        return
    await connection.execute("UPDATE trials SET status = $2 WHERE id = $1", row["id"], target.value)
    await connection.execute(_MOVE_TALLY, row["job_id"], row["status"], target.value)


async def start_job(db: Database, job_id: str) -> Any:
    """QUEUED → RUNNING with its event, once; returns the job's row, or None when it was deleted."""
    async with db.transaction() as connection:
        row = await connection.fetchrow("SELECT * FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        if row is not None and row["status"] == JobStatus.QUEUED:
            await connection.execute(
                "UPDATE jobs SET status = 'RUNNING', updated_at = now() WHERE id = $1", job_id
            )
            await append_events(connection, job_id, [events.job_running(job_id)])
        return row


async def cancel_job(connection: Any, job_id: str) -> None:
    """Accept a cancel: what is queued settles CANCELLED at once, what runs is counted as active.

    Must run in a transaction. A job that is terminal or cancelling stays as it is.
    """
    row = await connection.fetchrow("SELECT * FROM jobs WHERE id = $1 FOR UPDATE", job_id)
    if row is None or JobStatus(row["status"]) in JOB_TERMINAL or row["status"] == JobStatus.CANCELLING:
        return
    cancelled = await cancel_queued(connection, job_id)
    tally = await connection.fetchval("SELECT by_status FROM jobs WHERE id = $1", job_id)
    active = tally[TrialStatus.RUNNING] + tally[TrialStatus.SCORING]
    await connection.execute(
        "UPDATE jobs SET status = 'CANCELLING', cancel_requested_at = now(), updated_at = now()"
        " WHERE id = $1",
        job_id,
    )
    event = events.job_cancelling(job_id, cancelled_trials=cancelled, active_trials=active)
    await append_events(connection, job_id, [event])


async def cancel_queued(connection: Any, job_id: str, indexes: list[int] | None = None) -> int:
    """Settle queued trials of a locked job (all, or those at `indexes`) as CANCELLED; returns how many.

    In bulk, whatever their number: one statement for the trials, one for each group, one event each for
    named ones (a whole job's cancel tells their number in its own event).
    """
    at = now()
    members = {"exception_info": exception_info((ExceptionType.CANCELLED, STOPPED_MESSAGE), at)}
    rows = await connection.fetch(
        "UPDATE trials SET status = 'CANCELLED', finished_at = $3, result = result || $4"
        " WHERE job_id = $1 AND status = 'QUEUED' AND ($2::int[] IS NULL OR index = ANY($2))"
        " RETURNING id, task_name, attempt_number, evals_key",
        job_id,
        indexes,
        at,
        members,
    )
    if rows:
        await _count_cancelled(connection, job_id, rows)
    if indexes is not None:
        await append_events(connection, job_id, [_stopped_event(row) for row in rows])
    return len(rows)


def name_of(row: Any) -> TrialName:
    """What an event calls the trial of a row."""
    return TrialName(trial_id=row["id"], task_name=row["task_name"], attempt_number=row["attempt_number"])


def _stopped_event(row: Any) -> NewEvent:
    exception = (ExceptionType.CANCELLED.value, STOPPED_MESSAGE)
    return events.trial_settled(name_of(row), TrialStatus.CANCELLED, exception=exception)


async def _count_cancelled(connection: Any, job_id: str, rows: Any) -> None:
    job = await connection.fetchrow("SELECT by_status, totals FROM jobs WHERE id = $1", job_id)
    tally, totals = dict(job["by_status"]), dict(job["totals"])
    tally["QUEUED"] -= len(rows)
    tally["CANCELLED"] += len(rows)
    totals["n_errored_trials"] += len(rows)
    await connection.execute(
        "UPDATE jobs SET by_status = $2, totals = $3, updated_at = now() WHERE id = $1", job_id, tally, totals
    )
    for key, count in Counter(row["evals_key"] for row in rows).items():
        await _count_cancelled_in_group(connection, (job_id, key), count)


async def _count_cancelled_in_group(connection: Any, key: tuple[str, str], n_cancelled: int) -> None:
    group = GroupSums(
        **await connection.fetchrow(
            "UPDATE job_groups SET n_settled = n_settled + $3, n_errors = n_errors + $3"
            " WHERE job_id = $1 AND evals_key = $2"
            " RETURNING n_total, n_settled, n_rewarded, n_errors, reward_sum, is_binary",
            *key,
            n_cancelled,
        )
    )
    if group.answers_pass_at_k:
        points = pass_at_k(await attempts_of_group(connection, *key))
        await connection.execute(
            "UPDATE job_groups SET pass_at_k = $3 WHERE job_id = $1 AND evals_key = $2", *key, points
        )


async def attempts_of_group(connection: Any, job_id: str, evals_key: str) -> list[tuple[int, int]]:
    """(attempts, successes) of each of its tasks, as `pass_at_k` takes them."""
    rows = await connection.fetch(
        "SELECT count(*) AS attempts, count(*) FILTER (WHERE reward = 1) AS successes"
        " FROM trials WHERE job_id = $1 AND evals_key = $2 GROUP BY task_name",
        job_id,
        evals_key,
    )
    return [(row["attempts"], row["successes"]) for row in rows]


_ENDED_BY_CANCEL = """
SELECT EXISTS (
  SELECT FROM job_events asked WHERE asked.job_id = $1 AND asked.type = 'job.cancelling' AND (
    (asked.payload ->> 'cancelled_trials')::int > 0
    OR EXISTS (SELECT FROM job_events settled WHERE settled.job_id = $1 AND settled.seq > asked.seq
               AND settled.type = 'trial.settled' AND settled.payload ->> 'status' = 'CANCELLED')))
"""


async def _did_cancel_end_any(connection: Any, job_id: str) -> bool:
    """Whether the job's cancel ended a trial: those stopped one by one before it are not its doing."""
    return bool(await connection.fetchval(_ENDED_BY_CANCEL, job_id))


async def finish_job(db: Database, job_id: str) -> Any:
    """COMPLETED, or CANCELLED when a cancel came before the work was done; returns the job's row.

    If all trials had already ended on their own when the cancel came, the job is COMPLETED (contract 6.5).
    """
    async with db.transaction() as connection:
        row = await connection.fetchrow("SELECT * FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        if row is None or JobStatus(row["status"]) in JOB_TERMINAL:
            return row
        cancelled = row["by_status"]["CANCELLED"]
        is_cancelled = row["status"] == JobStatus.CANCELLING and await _did_cancel_end_any(connection, job_id)
        status = JobStatus.CANCELLED if is_cancelled else JobStatus.COMPLETED
        event = (
            events.job_cancelled(job_id, cancelled_trials=cancelled)
            if is_cancelled
            else events.job_completed(job_id)
        )
        await append_events(connection, job_id, [event])
        return await connection.fetchrow(
            "UPDATE jobs SET status = $2, finished_at = now(), updated_at = now() WHERE id = $1 RETURNING *",
            job_id,
            status.value,
        )
