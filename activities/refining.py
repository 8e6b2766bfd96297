"""Keeps the spend of settled trials true while calls that were under way are still being measured."""

from __future__ import annotations

import asyncio

import structlog

from activities.metering import lane_of, usage_reading
from activities.traces.gateway import write_gateway_lines
from domain.vocabulary import AttemptPhase
from store.attempt_spend import attempt_spend
from store.database import Database, now
from store.fences import Fence, Fenced
from store.refine import ProvisionalTrial, provisional_trials, refine_spend

log = structlog.get_logger()

EVERY_SEC = 10.0
# Above any try of an activity: the trial has settled, nothing else writes its record.
AFTER_ALL_TRIES = 1_000_000


async def refine_settled_spend(db: Database) -> None:
    """Until cancelled. Any number of workers may do it: each change is made once."""
    while True:
        await asyncio.sleep(EVERY_SEC)
        try:
            for trial in await provisional_trials(db):
                await refine(db, trial)
        except Exception as error:
            log.warning("spend could not be refined", error=repr(error))


async def refine(db: Database, trial: ProvisionalTrial) -> None:
    """State one trial's spend anew, with the trace's lines of the gateway; nothing while a call is open."""
    spend = await attempt_spend(db, trial.trial_id, trial.attempt_number, "agent")
    if spend.n_open:
        return
    fence = Fence(
        trial.job_id,
        trial.trial_id,
        trial.attempt_number,
        AttemptPhase.PERSIST,
        AFTER_ALL_TRIES,
        is_last_resort=True,
        turn=trial.turn,
    )
    try:
        if await refine_spend(db, fence, lane_of(spend), usage_reading(spend, now())):
            await write_gateway_lines(db, fence)
    except Fenced:
        log.info("an attempt was retired before its spend was final", trial=trial.trial_id)
