"""Derived jobs: a new job over chosen trials of another, which stays as it is (contract §6.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from domain.derivation import (
    ResumeRequest,
    RetryRequest,
    SourceJob,
    SourceTrial,
    derive,
    select_resume,
    select_retry,
    select_retry_of_one,
    selection_fingerprint,
)
from domain.errors import ApiError
from domain.jobs import DatasetVersionRef, JobPlan
from domain.vocabulary import JobStatus, SourceAction, TrialStatus
from store.accounts import Caller
from store.budgets import refuse_without_credits
from store.database import Database, now
from store.new_job import Accepted, IdempotencyKey, NewJob, find_earlier, insert_job
from store.trial_reads import find_trial

# Locked, so that the source cannot be deleted between the choice and the new job.
_SOURCE = """
SELECT id, org_id, status, plan FROM jobs
WHERE id = $1 AND (owner_user_id = $2 OR org_id = ANY($3)) FOR SHARE
"""
_TRIALS = """
SELECT id, index, source, version_id, task_name, arm_index, attempt, status, exception_type,
       result ->> 'x_harbor_exception' AS harbor_exception,
       result #>> '{agent_result,metadata,exception}' AS agent_exception
FROM trials WHERE job_id = $1 ORDER BY index
"""
_EXCEPTIONS = ("exception_type", "harbor_exception", "agent_exception")


@dataclass(frozen=True)
class Asked:
    """What a request wants of a source: the verb, which trials, and under which key."""

    action: SourceAction
    select: Callable[[SourceJob], Sequence[SourceTrial]]
    idempotency_key: str | None = None


@dataclass(frozen=True)
class Chosen:
    """What the derived job is made of. `version_id` is the version whose tests judge, where it is another
    than the source's: that of `with_tests`."""

    action: SourceAction
    trials: Sequence[SourceTrial]
    key: IdempotencyKey | None = None
    version_id: str | None = None
    with_tests: DatasetVersionRef | None = None


async def resume_job(
    db: Database, caller: Caller, job_id: str, request: ResumeRequest, idempotency_key: str | None
) -> Accepted:
    """A new job over what failed or was stopped; raises what `select_resume` does, and `job_not_found`."""
    asked = Asked("resume", lambda source: select_resume(source, request), idempotency_key)
    return await _derive(db, caller, job_id, asked)


async def retry_job(
    db: Database, caller: Caller, job_id: str, request: RetryRequest, idempotency_key: str | None
) -> Accepted:
    """A new job over the trials that the request selects; raises what `select_retry` does."""
    asked = Asked("retry", lambda source: select_retry(source, request), idempotency_key)
    return await _derive(db, caller, job_id, asked)


async def retry_trial(db: Database, caller: Caller, trial_id: str, idempotency_key: str | None) -> Accepted:
    """A new job over one trial: what `retry_job` does with its name, and the same under one key."""
    trial = await find_trial(db, caller, trial_id)
    asked = Asked("retry", lambda source: select_retry_of_one(source, trial_id), idempotency_key)
    with naming_the_trial(trial_id):
        return await _derive(db, caller, trial["job_id"], asked)


@contextmanager
def naming_the_trial(trial_id: str) -> Iterator[None]:
    """A trial whose job is deleted between two looks is not found: who named the trial knows no job."""
    try:
        yield
    except ApiError as error:
        if error.code != "job_not_found":
            raise
        raise ApiError("trial_not_found", f"No trial {trial_id}.") from error


async def _derive(db: Database, caller: Caller, source_job_id: str, asked: Asked) -> Accepted:
    """Write the derived job or refuse it; nothing is written when it is refused."""
    async with db.transaction() as connection:
        row, source = await lock_source(connection, caller, source_job_id)
        chosen = asked.select(source)
        key = _key(source_job_id, chosen, asked)
        earlier = await find_earlier(connection, caller.user_id, key)
        if earlier is not None:
            return Accepted(earlier, is_replay=True)
        await refuse_without_credits(connection, caller.user_id)
        return await insert_derived(
            connection, caller, row["org_id"], source, Chosen(asked.action, chosen, key)
        )


async def lock_source(connection: Any, caller: Caller, job_id: str) -> tuple[Any, SourceJob]:
    """A job with its trials, which cannot be deleted before the transaction's end; its row has `org_id`.

    Raises `job_not_found`.
    """
    row = await connection.fetchrow(_SOURCE, job_id, caller.user_id, caller.org_ids)
    if row is None:
        raise ApiError("job_not_found", f"No job {job_id}.")
    return row, await _source(connection, row)


async def insert_derived(
    connection: Any, caller: Caller, org_id: str, source: SourceJob, chosen: Chosen
) -> Accepted:
    """Write the job of the chosen trials, in the organization of its source."""
    derived = derive(source.plan, chosen.trials, chosen.action, str(uuid4()), chosen.with_tests)
    new = NewJob(
        plan=derived.plan,
        slots=list(derived.slots(chosen.version_id)),
        owner_user_id=caller.user_id,
        org_id=org_id,
        at=now(),
        key=chosen.key,
    )
    await insert_job(connection, new)
    return Accepted(derived.plan.job_id, is_replay=False)


async def _source(connection: Any, row: Any) -> SourceJob:
    trials = [_trial(trial) for trial in await connection.fetch(_TRIALS, row["id"])]
    return SourceJob(JobPlan.model_validate(row["plan"]), JobStatus(row["status"]), trials)


def _trial(row: Any) -> SourceTrial:
    return SourceTrial(
        trial_id=row["id"],
        index=row["index"],
        source=row["source"],
        version_id=row["version_id"],
        task_name=row["task_name"],
        arm_index=row["arm_index"],
        attempt=row["attempt"],
        status=TrialStatus(row["status"]),
        exceptions=frozenset(name for column in _EXCEPTIONS if (name := row[column]) is not None),
    )


def _key(source_job_id: str, chosen: Sequence[SourceTrial], asked: Asked) -> IdempotencyKey | None:
    if asked.idempotency_key is None:
        return None
    return IdempotencyKey(asked.action, asked.idempotency_key, selection_fingerprint(source_job_id, chosen))
