"""The settle of one attempt number and, where the policy says so, its retirement: one transaction.

Who decides: the pure policy (`domain.retries`), asked by the activity that closes the attempt; the store is
told the verdict and writes all of it or nothing. So there is exactly one settle of an attempt number, and
at no moment is a trial seen as over that is owed a retry. Retiring moves the trial's `attempt_number`, which
is the first part of every fence: whatever still belongs to the retired attempt is refused from then on, and
a settle that is repeated because its answer was lost finds the attempt retired and answers the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from domain import events, stats
from domain.events import BrokenCircuit, NewEvent
from domain.money import usd_of_nanos
from domain.retries import BreakCircuit, RetryAfter, Settle, Verdict
from domain.stats import GroupSums, JobTotals, LaneReading, TrialOutcome
from domain.vocabulary import AttemptPhase, ExceptionType, InfraFailureSignature, JobStatus, TrialStatus
from store.database import Database, now
from store.events import append_events
from store.fences import Fence, is_settled, lock_trial
from store.record import attempts_of_group, exception_info, iso, move_status, name_of
from store.silence import MEMBER as SILENCE


@dataclass(frozen=True)
class Settlement:
    """The end of one attempt number. `members` are wire members of contract 3.8 beside the outcome's own.

    `verdict` is what follows; `signature` the failure's class, kept with a retired attempt.
    """

    outcome: TrialOutcome
    exception: tuple[ExceptionType, str] | None = None
    members: Mapping[str, Any] = field(default_factory=dict[str, Any])
    failed_phase: AttemptPhase | None = None
    signature: InfraFailureSignature | None = None
    verdict: Verdict = field(default_factory=Settle)


@dataclass(frozen=True)
class SettleEnd:
    """What the attempt number came to; `is_retired`: the trial goes on with the next one."""

    status: TrialStatus
    reward: float | None
    is_retired: bool = False


async def settle(db: Database, fence: Fence, settlement: Settlement) -> SettleEnd:
    """Settle one attempt number: status, reward, spend, events and job statistics, and what follows.

    A trial that is settled already stays as it is; returns what it came to. An attempt that failed while
    its job was being cancelled, or its trial stopped, is not retried. Raises `Fenced`, also for an attempt
    that is retired already: `retired` tells.
    """
    async with db.transaction() as connection:
        row = await lock_trial(connection, fence)
        if row is None:
            return SettleEnd(TrialStatus.CANCELLED, None)
        if is_settled(row):
            return SettleEnd(TrialStatus(row["status"]), row["reward"])
        outcome, verdict = settlement.outcome, settlement.verdict
        if isinstance(verdict, RetryAfter) and await _is_wanted(connection, row):
            await _retire(connection, row, settlement, verdict)
            return SettleEnd(outcome.status, outcome.reward, is_retired=True)
        await _end(connection, row, settlement)
    return SettleEnd(outcome.status, outcome.reward)


async def retired(db: Database, fence: Fence) -> bool:
    """Whether an attempt number was settled and its trial has gone on to a later one."""
    pool = await db.pool()
    newest = await pool.fetchval("SELECT attempt_number FROM trials WHERE id = $1", fence.trial_id)
    return newest is not None and newest > fence.attempt_number


async def _is_wanted(connection: Any, row: Any) -> bool:
    """Whether the trial may go on: nobody has asked for its end, or its job's."""
    status = await connection.fetchval("SELECT status FROM jobs WHERE id = $1", row["job_id"])
    return row["stop_requested_at"] is None and status != JobStatus.CANCELLING


async def _end(connection: Any, row: Any, settlement: Settlement) -> None:
    """The settle is the trial's end."""
    await _write_settlement(connection, row, settlement, now())
    await move_status(connection, row, settlement.outcome.status)
    await _add_to_statistics(connection, row, settlement.outcome)
    told = [_settled_event(row, settlement)]
    if isinstance(settlement.verdict, BreakCircuit):
        told.append(_broken_event(row, settlement, settlement.verdict))
    await append_events(connection, row["job_id"], told)


_RETIRE = """
UPDATE trials SET attempt_number = attempt_number + 1, fence_phase = 0, fence_try = 0, phase = NULL,
  reward = NULL, result = '{}', sandbox_id = NULL, host_id = NULL, started_at = NULL, finished_at = NULL,
  n_retries = n_retries + 1, retries = retries || $2
WHERE id = $1
"""


async def _retire(connection: Any, row: Any, settlement: Settlement, verdict: RetryAfter) -> None:
    """The attempt is over and the trial is queued again, as its next attempt number, of which nothing is
    known yet. The statistics lose the attempt's counts and keep its spend; a group has gained nothing."""
    outcome, exception = settlement.outcome, settlement.exception
    assert exception is not None  # the policy retries failures only
    await connection.execute(_RETIRE, row["id"], [_retired_attempt(row, settlement, now())])
    await move_status(connection, row, TrialStatus.QUEUED)
    totals = JobTotals(**await connection.fetchval("SELECT totals FROM jobs WHERE id = $1", row["job_id"]))
    totals = totals.settle(outcome).unsettle(outcome)
    await connection.execute("UPDATE jobs SET totals = $2 WHERE id = $1", row["job_id"], totals.model_dump())
    retrying = events.trial_retrying(
        name_of(row),
        max_retries=verdict.max_retries,
        delay_sec=verdict.delay_sec,
        exception_type=exception[0].value,
    )
    await append_events(connection, row["job_id"], [_settled_event(row, settlement), retrying])


def _retired_attempt(row: Any, settlement: Settlement, at: datetime) -> dict[str, Any]:
    """TrialRetry of contract 3.8. Its cost is the agent's and a judge's together; null without either.

    `x_spend` has each of them, `{tokens, cost_usd, spend_source}`: it may be stated anew (`store.refine`).
    """
    outcome = settlement.outcome
    costs = [cost for cost in (outcome.cost_nanos, outcome.judge_cost_nanos) if cost is not None]
    return {
        "attempt_number": row["attempt_number"],
        "exception_info": exception_info(settlement.exception, at),
        "cost_usd": usd_of_nanos(sum(costs)) if costs else None,
        "started_at": iso(row["started_at"]) if row["started_at"] else None,
        "settled_at": iso(at),
        "x_signature": settlement.signature,
        "x_spend": {lane: spend_members(reading) for lane, reading in outcome.lanes.items()},
    }


def spend_members(reading: LaneReading) -> dict[str, Any]:
    """A lane of a retired attempt."""
    return {**reading.wire(), "spend_source": reading.source}


async def _write_settlement(connection: Any, row: Any, settlement: Settlement, at: datetime) -> None:
    outcome = settlement.outcome
    members = {
        **settlement.members,
        "verifier_result": None if outcome.rewards is None else {"rewards": outcome.rewards},
        "exception_info": exception_info(_explained(settlement), at),
        "spend_source": outcome.spend_source,
        "judge_spend_source": outcome.judge_spend_source,
    }
    await connection.execute(
        "UPDATE trials SET result = (result || $2) - $5::text, reward = $3, finished_at = $4, phase = NULL"
        " WHERE id = $1",
        row["id"],
        members,
        outcome.reward,
        at,
        SILENCE,
    )


def _explained(settlement: Settlement) -> tuple[ExceptionType, str] | None:
    """The exception; where the circuit broke, with why there is no further attempt."""
    exception, verdict = settlement.exception, settlement.verdict
    if exception is None or not isinstance(verdict, BreakCircuit):
        return exception
    return exception[0], verdict.explain(exception[1])


def _settled_event(row: Any, settlement: Settlement) -> NewEvent:
    exception = _explained(settlement)
    return events.trial_settled(
        name_of(row),
        settlement.outcome.status,
        reward=settlement.outcome.reward,
        exception=None if exception is None else (exception[0].value, exception[1]),
        attempt_phase=settlement.failed_phase,
    )


def _broken_event(row: Any, settlement: Settlement, verdict: BreakCircuit) -> NewEvent:
    circuit = BrokenCircuit(
        **verdict.model_dump(),
        failure_phase=(settlement.failed_phase or AttemptPhase.PERSIST).value,
        exception_message=settlement.exception[1] if settlement.exception else None,
    )
    return events.trial_retry_circuit_broken(name_of(row), circuit)


async def _add_to_statistics(connection: Any, row: Any, outcome: TrialOutcome) -> None:
    totals = JobTotals(**await connection.fetchval("SELECT totals FROM jobs WHERE id = $1", row["job_id"]))
    await connection.execute(
        "UPDATE jobs SET totals = $2 WHERE id = $1", row["job_id"], totals.settle(outcome).model_dump()
    )
    key = (row["job_id"], row["evals_key"])
    group = GroupSums(
        **await connection.fetchrow(
            "SELECT n_total, n_settled, n_rewarded, n_errors, reward_sum, is_binary"
            " FROM job_groups WHERE job_id = $1 AND evals_key = $2 FOR UPDATE",
            *key,
        )
    ).settle(outcome)
    points = stats.pass_at_k(await attempts_of_group(connection, *key)) if group.answers_pass_at_k else {}
    await connection.execute(
        "UPDATE job_groups SET n_settled = $3, n_rewarded = $4, n_errors = $5, reward_sum = $6,"
        " is_binary = $7, pass_at_k = $8 WHERE job_id = $1 AND evals_key = $2",
        *key,
        group.n_settled,
        group.n_rewarded,
        group.n_errors,
        group.reward_sum,
        group.is_binary,
        points,
    )
