"""Spend that was not final when a trial settled: made true once the last call under way was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from domain.money import nanos_of_usd, usd_of_nanos
from domain.stats import JobTotals, LaneReading, TokenCounts
from domain.vocabulary import SpendSource
from store.database import Database
from store.fences import RANKS_OF_A_TURN, Fence, lock_trial

REFINED_FOR_MIN = 30  # contract 5: "Usage refinement after settle"

_PROVISIONAL = f"""
SELECT id, job_id, attempt_number, fence_phase FROM trials
WHERE finished_at > now() - interval '{REFINED_FOR_MIN} minutes'
  AND result ->> 'spend_source' = 'measured_provisional'
"""


@dataclass(frozen=True)
class ProvisionalTrial:
    """A settled trial whose spend was a floor."""

    trial_id: str
    job_id: str
    attempt_number: int
    turn: int


async def provisional_trials(db: Database) -> list[ProvisionalTrial]:
    """Those that settled lately."""
    pool = await db.pool()
    return [
        ProvisionalTrial(
            row["id"], row["job_id"], row["attempt_number"], row["fence_phase"] // RANKS_OF_A_TURN
        )
        for row in await pool.fetch(_PROVISIONAL)
    ]


async def refine_spend(db: Database, fence: Fence, reading: LaneReading, usage: dict[str, Any]) -> bool:
    """State what the trial's agent has really spent, on the trial and in its job's totals; False: no change.

    The trial keeps its status and reward. Raises `Fenced` for an attempt that was retired meanwhile.
    """
    async with db.transaction() as connection:
        row = await lock_trial(connection, fence)
        if row is None or row["attempt_number"] != fence.attempt_number or not row["result"]["agent_result"]:
            return False
        before = _reading_of(row["result"])
        if before == reading:
            return False
        result = {**row["result"]["agent_result"], **reading.tokens.model_dump()}
        result["cost_usd"] = usd_of_nanos(reading.cost_nanos)
        members = {"agent_result": result, "spend_source": reading.source, "usage": usage}
        await connection.execute(
            "UPDATE trials SET result = result || $2 WHERE id = $1", fence.trial_id, members
        )
        totals = JobTotals(**await connection.fetchval("SELECT totals FROM jobs WHERE id = $1", fence.job_id))
        await connection.execute(
            "UPDATE jobs SET totals = $2, updated_at = now() WHERE id = $1",
            fence.job_id,
            totals.refine(before, reading).model_dump(),
        )
    return True


def _reading_of(result: dict[str, Any]) -> LaneReading:
    """What the settle stated."""
    agent = result["agent_result"]
    return LaneReading(
        tokens=TokenCounts(**{name: agent[name] for name in TokenCounts.model_fields}),
        cost_nanos=nanos_of_usd(agent["cost_usd"]),
        source=SpendSource(result["spend_source"]),
    )
