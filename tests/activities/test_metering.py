"""A running trial tells what it has spent, a lower bound that only climbs, until the settle clears it."""

from __future__ import annotations

import pytest

from activities import metering
from activities.metering import watching_spend
from domain.events import TrialName
from domain.vocabulary import AttemptPhase
from store import record
from store.database import Database
from store.events import read_events
from store.fences import Fence
from store.record import PhaseChange
from store.spend import reserve, settle_call
from tests.finished_jobs import accept, publish, trial_ids
from tests.store.money_factory import measured, minted, new_call
from tests.waiting import until


async def test_live_spend_is_told_as_it_grows(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "SPEND_EVERY_SEC", 0.05)
    await publish(db, "alpha")
    job_id = await accept(db)
    [trial_id] = await trial_ids(db, job_id)
    plan = await minted(db, trial_id=trial_id, job_id=job_id)
    fence = Fence(job_id, trial_id, 1, AttemptPhase.AGENT, 1)
    await record.enter_phase(db, fence, PhaseChange())

    async def told() -> list[float]:
        events = await read_events(db, job_id, 0, 100)
        return [row["payload"]["live_spent_usd"] for row in events if row["type"] == "trial.spend"]

    async with watching_spend(db, fence, TrialName(trial_id=trial_id, task_name="alpha", attempt_number=1)):
        for cost in (100, 50):
            call = new_call(plan, 300)
            assert await reserve(db, call) is None
            await settle_call(db, call.call_id, measured(cost, input_tokens=7, cached_input_tokens=3))
            count = 1 if cost == 100 else 2

            async def is_told(wanted: int = count) -> bool:
                return len(await told()) == wanted

            await until(is_told)
    assert await told() == [1e-07, 1.5e-07]
    row = await (await db.pool()).fetchrow("SELECT result FROM trials")
    result = row["result"]
    assert result["live_spent_usd"] == 1.5e-07
    assert result["live_spend_at"].endswith("Z")
    usage = result["usage"]
    assert (usage["provisional"], usage["input_tokens"], usage["cached_input_tokens"]) == (True, 20, 6)
