"""What an attempt has spent, from the gateway's ledger: while it runs, and at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import structlog

from activities.failures import is_transient
from domain.causes import ModelFacts
from domain.events import SpendReading, TrialName, trial_spend
from domain.money import usd_of_nanos
from domain.stats import LaneReading, TokenCounts
from domain.vocabulary import SpendSource
from store.attempt_spend import AttemptSpend, attempt_spend
from store.database import Database, now
from store.fences import Fence
from store.keys import KeyRole
from store.record import PhaseChange, enter_phase, iso

log = structlog.get_logger()

SPEND_EVERY_SEC = 30.0  # contract 5: "Live spend refresh"
# Calls that are under way when the agent is over are settled by what the provider still says of them.
OPEN_CALLS_WAIT_SEC = 20.0
OPEN_CALLS_POLL_SEC = 0.25


@asynccontextmanager
async def watching_spend(db: Database, fence: Fence, name: TrialName) -> AsyncIterator[None]:
    """Tell what the trial has spent about every 30 s until the block ends."""
    watching = asyncio.create_task(_watch(db, fence, name))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(db: Database, fence: Fence, name: TrialName) -> None:
    told = 0
    while True:
        await asyncio.sleep(SPEND_EVERY_SEC)
        try:
            spend = await attempt_spend(db, fence.trial_id, fence.attempt_number, "agent")
            if spend.measured_nanos > told:
                await _tell(db, fence, name, spend)
                told = spend.measured_nanos
        except Exception as error:
            # The next reading says it; a follower that was overtaken hears so from its own writes.
            if not is_transient(error):
                log.warning("spend could not be told", trial=fence.trial_id, error=repr(error))


async def _tell(db: Database, fence: Fence, name: TrialName, spend: AttemptSpend) -> None:
    at = now()
    members = {
        "live_spent_usd": usd_of_nanos(spend.measured_nanos),
        "live_spend_at": iso(at),
        "usage": usage_reading(spend, at) | {"provisional": True},
    }
    event = trial_spend(
        name, SpendReading(live_spent_nanos=spend.measured_nanos, **tokens_of(spend).model_dump())
    )
    await enter_phase(db, fence, PhaseChange(members=members, event=event))


def tokens_of(spend: AttemptSpend) -> TokenCounts:
    """As the contract counts them: input with what was cached and written to a cache."""
    return TokenCounts(
        n_input_tokens=spend.usage.prompt_tokens,
        n_cache_tokens=spend.usage.cached_input_tokens,
        n_output_tokens=spend.usage.output_tokens,
    )


def lane_of(spend: AttemptSpend) -> LaneReading:
    """A lane as a settle states it."""
    return LaneReading(tokens=tokens_of(spend), cost_nanos=spend.measured_nanos, source=spend.source)


def usage_reading(spend: AttemptSpend, at: datetime) -> dict[str, Any]:
    """UsageReading of contract 3.8: provisional unless every call was measured."""
    return {
        "provisional": spend.source is not SpendSource.MEASURED,
        "spent_usd": usd_of_nanos(spend.measured_nanos),
        "input_tokens": spend.usage.prompt_tokens,
        "cached_input_tokens": spend.usage.cached_input_tokens,
        "cache_write_tokens": spend.usage.cache_write_tokens,
        "output_tokens": spend.usage.output_tokens,
        "as_of": iso(at),
    }


async def final_spend(
    db: Database, trial_id: str, attempt_number: int, role: KeyRole, step: str | None = None
) -> AttemptSpend:
    """The spend once no call is under way any more, or as it is after `OPEN_CALLS_WAIT_SEC`.

    Of one step, or of the whole attempt.
    """
    deadline = asyncio.get_running_loop().time() + OPEN_CALLS_WAIT_SEC
    while True:
        spend = await attempt_spend(db, trial_id, attempt_number, role, step)
        if spend.n_open == 0 or asyncio.get_running_loop().time() > deadline:
            return spend
        await asyncio.sleep(OPEN_CALLS_POLL_SEC)


def model_facts(spend: AttemptSpend, *, is_later_step: bool) -> ModelFacts:
    """What the gateway saw. A refusal that the agent went on after did not end its work.

    The steps of an attempt share its cap: what a later one finds of it says nothing of the cap itself.
    """
    is_last = spend.last_refusal is not None and spend.n_calls_after_refusal == 0
    return ModelFacts(
        n_calls=spend.n_calls + sum(spend.refusals.values()),
        was_admitted=spend.n_calls > 0 or is_later_step,
        last_refusal=spend.last_refusal if is_last else None,
        last_status=spend.last_http_status,
        last_error=spend.last_error_kind,
    )
