"""Keeps the spend of settled attempts true while calls that were under way are still being measured."""

from __future__ import annotations

import asyncio

import structlog

from activities.metering import lane_of, usage_reading
from activities.traces.gateway import write_gateway_lines
from domain.stats import Lane, LaneReading
from domain.vocabulary import AttemptPhase
from store.attempt_spend import AttemptSpend, attempt_spend
from store.database import Database, now
from store.fences import Fence
from store.refine import Measured, ProvisionalAttempt, provisional_attempts, refine_spend

log = structlog.get_logger()

EVERY_SEC = 10.0
# Above any try of an activity: the trial has settled, nothing else writes its record.
AFTER_ALL_TRIES = 1_000_000
LANES: tuple[Lane, ...] = ("agent", "judge")


async def refine_settled_spend(db: Database) -> None:
    """Until cancelled. Any number of workers may do it: each change is made once."""
    while True:
        await asyncio.sleep(EVERY_SEC)
        try:
            for attempt in await provisional_attempts(db):
                await refine(db, attempt)
        except Exception as error:
            log.warning("spend could not be refined", error=repr(error))


async def refine(db: Database, attempt: ProvisionalAttempt) -> None:
    """State one attempt's spend anew, each lane once no call of it is open; with the trace's lines of the
    gateway, which a retired attempt has none of."""
    of = (attempt.trial_id, attempt.attempt_number)
    spent: dict[Lane, AttemptSpend] = {lane: await attempt_spend(db, *of, lane) for lane in LANES}
    lanes: dict[Lane, LaneReading] = {
        lane: lane_of(spend) for lane, spend in spent.items() if not spend.n_open
    }
    steps: dict[str, AttemptSpend] = {}
    if "agent" in lanes:
        steps = {step: await attempt_spend(db, *of, "agent", step) for step in attempt.steps}
    measured = Measured(
        lanes=lanes,
        usage=usage_reading(spent["agent"], now()),
        steps={step: lane_of(spend) for step, spend in steps.items()},
    )
    if await refine_spend(db, attempt, measured) and not attempt.is_retired:
        await _write_lines(db, attempt)


async def _write_lines(db: Database, attempt: ProvisionalAttempt) -> None:
    fence = Fence(
        attempt.job_id,
        attempt.trial_id,
        attempt.attempt_number,
        AttemptPhase.PERSIST,
        AFTER_ALL_TRIES,
        is_last_resort=True,
        turn=attempt.turn,
    )
    await write_gateway_lines(db, fence)
