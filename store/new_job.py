"""Inserting a job with its trials, statistics, first event, intent and key: the one way, whoever asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from domain import events, stats
from domain.errors import ApiError
from domain.jobs import JobPlan, TrialSlot
from store.events import append_events
from store.intents import IntentKind, add_intent

_EARLIER = """
SELECT id, fingerprint FROM jobs WHERE owner_user_id = $1 AND idempotency_verb = $2 AND idempotency_key = $3
"""
_INSERT_JOB = """
INSERT INTO jobs (id, owner_user_id, org_id, name, status, plan, n_total_trials, by_status, totals,
                  workflow_id, idempotency_verb, idempotency_key, fingerprint, source_job_id, last_seq,
                  started_at, updated_at)
VALUES ($1, $2, $3, $4, 'QUEUED', $5, $6, $7, $8, $9, $10, $11, $12, $13, 0, $14, $14)
"""
_INSERT_TRIALS = """
INSERT INTO trials (id, job_id, index, task_name, source, version_id, arm_index, attempt, source_trial_id,
                    evals_key, status, attempt_number, fence_phase, fence_try, result, n_retries, retries)
SELECT u.*, 'QUEUED', 1, 0, 0, '{}', 0, '[]'
FROM (SELECT unnest($2::text[]), $1::text, unnest($3::int[]), unnest($4::text[]), unnest($5::text[]),
             unnest($6::text[]), unnest($7::int[]), unnest($8::int[]), unnest($9::text[]),
             unnest($10::text[])) u
"""
_INSERT_GROUP = """
INSERT INTO job_groups (job_id, evals_key, arm_index, source, n_total, n_settled, n_rewarded, n_errors,
                        reward_sum, is_binary, pass_at_k)
VALUES ($1, $2, $3, $4, $5, 0, 0, 0, 0, true, '{}')
"""


@dataclass(frozen=True)
class Accepted:
    """The job that answers the request; `is_replay` when an earlier request with the same key made it."""

    job_id: str
    is_replay: bool


@dataclass(frozen=True)
class IdempotencyKey:
    """A caller's key for one verb, and the fingerprint of what was asked with it."""

    verb: str
    key: str
    fingerprint: str


@dataclass(frozen=True)
class NewJob:
    """A job about to be written. Without `workflow_id` it is `job/<id>` and an intent to start it is written
    too: a job that a workflow brought runs already."""

    plan: JobPlan
    slots: Sequence[TrialSlot]
    owner_user_id: str
    org_id: str
    at: datetime
    key: IdempotencyKey | None = None
    workflow_id: str | None = None


async def find_earlier(connection: Any, owner_user_id: str, key: IdempotencyKey | None) -> str | None:
    """The job that an earlier request with this key made.

    Two requests with one key at the same time: the second waits, then finds the first's job. Raises
    `idempotency_key_reused` when the earlier one asked for something else.
    """
    if key is None:
        return None
    lock = f"{owner_user_id}/{key.verb}/{key.key}"
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock)
    row = await connection.fetchrow(_EARLIER, owner_user_id, key.verb, key.key)
    if row is None:
        return None
    if row["fingerprint"] != key.fingerprint:
        message = "This Idempotency-Key was used for a different request."
        raise ApiError("idempotency_key_reused", message, details={"job_id": row["id"]})
    return row["id"]


async def insert_job(connection: Any, new: NewJob) -> None:
    """Write it in the caller's transaction."""
    plan, key = new.plan, new.key
    await connection.execute(
        _INSERT_JOB,
        plan.job_id,
        new.owner_user_id,
        new.org_id,
        plan.job_name,
        plan.model_dump(mode="json"),
        plan.n_trials,
        stats.empty_tally(plan.n_trials),
        stats.JobTotals().model_dump(),
        new.workflow_id or f"job/{plan.job_id}",
        key.verb if key else None,
        key.key if key else None,
        key.fingerprint if key else None,
        plan.derivation.source_job_id if plan.derivation else None,
        new.at,
    )
    await _insert_trials(connection, plan, new.slots)
    await append_events(connection, plan.job_id, [events.job_created(plan)])
    if new.workflow_id is None:
        await add_intent(connection, IntentKind.START_JOB, plan.job_id)


async def _insert_trials(connection: Any, plan: JobPlan, slots: Sequence[TrialSlot]) -> None:
    """Each with the group it counts in; a group without trials does not exist."""
    keys = plan.evals_keys()
    await connection.execute(
        _INSERT_TRIALS,
        plan.job_id,
        [slot.trial_id for slot in slots],
        [slot.index for slot in slots],
        [slot.task_name for slot in slots],
        [slot.source for slot in slots],
        [slot.version_id for slot in slots],
        [slot.arm_index for slot in slots],
        [slot.attempt for slot in slots],
        [slot.source_trial_id for slot in slots],
        [keys[slot.arm_index, slot.source] for slot in slots],
    )
    sizes = Counter((slot.arm_index, slot.source) for slot in slots)
    await connection.executemany(
        _INSERT_GROUP,
        [
            (plan.job_id, key, arm_index, source, sizes[arm_index, source])
            for (arm_index, source), key in keys.items()
            if sizes[arm_index, source]
        ],
    )
