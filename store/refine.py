"""Spend that was not final when an attempt number settled: made true once its last call was measured.

Of the agent and of a judge, of the attempt that a trial ended with and of those that retries retired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from domain.money import nanos_of_usd, usd_of_nanos
from domain.stats import JobTotals, Lane, LaneReading
from domain.vocabulary import SpendSource
from store.database import Database
from store.fences import RANKS_OF_A_TURN
from store.settle import spend_members

REFINED_FOR_MIN = 30  # contract 5: "Usage refinement after settle"

_LATELY = f"now() - interval '{REFINED_FOR_MIN} minutes'"
_FLOOR = SpendSource.MEASURED_PROVISIONAL.value
# An attempt that was retired lately is one of a trial that runs still, or ended later.
_PROVISIONAL = f"""
SELECT id, job_id, attempt_number, fence_phase, false AS is_retired, result -> 'step_results' AS steps
FROM trials
WHERE finished_at > {_LATELY} AND '{_FLOOR}' IN (result ->> 'spend_source', result ->> 'judge_spend_source')
UNION ALL
SELECT t.id, t.job_id, (r ->> 'attempt_number')::int, t.fence_phase, true, NULL
FROM trials t, jsonb_array_elements(t.retries) r
WHERE t.n_retries > 0 AND (t.finished_at IS NULL OR t.finished_at > {_LATELY})
  AND (r ->> 'settled_at')::timestamptz > {_LATELY}
  AND '{_FLOOR}' IN (r #>> '{{x_spend,agent,spend_source}}', r #>> '{{x_spend,judge,spend_source}}')
"""
# The job first, as everywhere: nothing deadlocks.
_LOCK_JOB = "SELECT totals FROM jobs WHERE id = $1 FOR UPDATE"
_LOCK_TRIAL = "SELECT result, retries FROM trials WHERE id = $1 FOR UPDATE"
_RESTATE = "UPDATE trials SET result = $2, retries = $3 WHERE id = $1"
_RETOTAL = "UPDATE jobs SET totals = $2, updated_at = now() WHERE id = $1"
_MEMBERS: Mapping[Lane, tuple[str, str]] = {
    "agent": ("agent_result", "spend_source"),
    "judge": ("judge_result", "judge_spend_source"),
}


@dataclass(frozen=True)
class ProvisionalAttempt:
    """A settled attempt number of which a lane's spend was a floor; `steps` are those that it has begun."""

    trial_id: str
    job_id: str
    attempt_number: int
    turn: int
    is_retired: bool = False
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measured:
    """What the meter says now of the lanes whose every call has ended, and of each step's agent."""

    lanes: Mapping[Lane, LaneReading]
    usage: Mapping[str, Any]
    steps: Mapping[str, LaneReading] = field(default_factory=dict[str, LaneReading])


async def provisional_attempts(db: Database) -> list[ProvisionalAttempt]:
    """Those that settled lately."""
    pool = await db.pool()
    return [
        ProvisionalAttempt(
            trial_id=row["id"],
            job_id=row["job_id"],
            attempt_number=row["attempt_number"],
            turn=row["fence_phase"] // RANKS_OF_A_TURN,
            is_retired=row["is_retired"],
            steps=tuple(step["step_name"] for step in row["steps"] or ()),
        )
        for row in await pool.fetch(_PROVISIONAL)
    ]


async def refine_spend(db: Database, attempt: ProvisionalAttempt, measured: Measured) -> bool:
    """State what the attempt has really spent, on its trial and in its job's totals; False: no change.

    Its status and reward stay. Any number may do it at once: each change is made once.
    """
    async with db.transaction() as connection:
        totals = await connection.fetchval(_LOCK_JOB, attempt.job_id)
        row = await connection.fetchrow(_LOCK_TRIAL, attempt.trial_id)
        if row is None:
            return False
        stated = _stated(row, attempt)
        changed: dict[Lane, LaneReading] = {
            lane: after for lane, after in measured.lanes.items() if stated.get(lane, after) != after
        }
        columns = _columns(row, attempt, changed, measured)
        if columns == (row["result"], row["retries"]):
            return False
        await connection.execute(_RESTATE, attempt.trial_id, *columns)
        refined = JobTotals(**totals)
        for lane, after in changed.items():
            refined = refined.refine(lane, stated[lane], after, is_retired=attempt.is_retired)
        await connection.execute(_RETOTAL, attempt.job_id, refined.model_dump())
    return True


def _stated(row: Any, attempt: ProvisionalAttempt) -> dict[Lane, LaneReading]:
    """What the settle said of each lane that ran."""
    if attempt.is_retired:
        spend = _retired(row, attempt)["x_spend"]
        return {lane: LaneReading.of_wire(said, said["spend_source"]) for lane, said in spend.items()}
    result = row["result"]
    return {
        lane: LaneReading.of_wire(result[member], result[source])
        for lane, (member, source) in _MEMBERS.items()
        if result.get(member) and result.get(source)
    }


def _columns(
    row: Any, attempt: ProvisionalAttempt, changed: Mapping[Lane, LaneReading], measured: Measured
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The trial's `result` and `retries` with what changed."""
    if not attempt.is_retired:
        return row["result"] | _members(row["result"], changed, measured), row["retries"]
    retired = _retired(row, attempt)
    spend = retired["x_spend"] | {lane: spend_members(after) for lane, after in changed.items()}
    cost_nanos = sum(nanos_of_usd(said["cost_usd"]) for said in spend.values())
    restated = retired | {"x_spend": spend, "cost_usd": usd_of_nanos(cost_nanos)}
    return row["result"], [restated if each is retired else each for each in row["retries"]]


def _retired(row: Any, attempt: ProvisionalAttempt) -> dict[str, Any]:
    return next(each for each in row["retries"] if each["attempt_number"] == attempt.attempt_number)


def _members(
    result: Mapping[str, Any], changed: Mapping[Lane, LaneReading], measured: Measured
) -> dict[str, Any]:
    """The members of the trial's result that are other than they were."""
    members: dict[str, Any] = {}
    for lane, after in changed.items():
        member, source = _MEMBERS[lane]
        members |= {member: result[member] | after.wire(), source: after.source}
    if "agent" in changed:
        members["usage"] = measured.usage
    if measured.steps:
        members["step_results"] = [_step(step, measured.steps) for step in result["step_results"]]
    return members


def _step(step: dict[str, Any], measured: Mapping[str, LaneReading]) -> dict[str, Any]:
    after = measured.get(step["step_name"])
    if after is None or not step["agent_result"]:
        return step
    return step | {"agent_result": step["agent_result"] | after.wire()}
