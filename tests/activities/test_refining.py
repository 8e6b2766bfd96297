"""A call that was under way when its trial settled is measured later: trial and job then say what it cost."""

from __future__ import annotations

from activities.metering import lane_of
from activities.refining import refine
from domain.money import nanos_of_usd
from domain.outcomes import AttemptEnd, agent_result, outcome_of
from domain.vocabulary import AttemptPhase
from store import record
from store.attempt_spend import attempt_spend
from store.database import Database
from store.fences import Fence
from store.record import PhaseChange
from store.refine import provisional_trials
from store.settle import Settlement, settle
from store.spend import reserve, settle_call
from tests.finished_jobs import accept, publish, trial_ids
from tests.store.money_factory import measured, minted, new_call


async def settled_with_a_call_under_way(db: Database) -> tuple[str, str]:
    """The trial and the call."""
    await publish(db, "alpha")
    job_id = await accept(db)
    [trial_id] = await trial_ids(db, job_id)
    plan = await minted(db, trial_id=trial_id, job_id=job_id)
    one, two = new_call(plan, 300), new_call(plan, 300)
    assert await reserve(db, one) is None
    assert await reserve(db, two) is None
    await settle_call(db, one.call_id, measured(120, input_tokens=10, output_tokens=2))
    change = PhaseChange()
    await record.enter_phase(db, Fence(job_id, trial_id, 1, AttemptPhase.AGENT, 1), change)
    spend = lane_of(await attempt_spend(db, trial_id, 1, "agent"))
    end = AttemptEnd(has_agent_ended=True, rewards={"reward": 1.0}, spend=spend)
    settlement = Settlement(outcome_of(end), members={"agent_result": agent_result(end)})
    await settle(db, Fence(job_id, trial_id, 1, AttemptPhase.PERSIST, 1), settlement)
    return trial_id, two.call_id


async def stated(db: Database) -> tuple[float, str, int, float]:
    pool = await db.pool()
    trial = await pool.fetchrow("SELECT result, status FROM trials")
    totals = await pool.fetchval("SELECT totals FROM jobs")
    assert trial["status"] == "SCORED"
    result = trial["result"]
    agent = result["agent_result"]
    cost_nanos = nanos_of_usd(agent["cost_usd"])
    return cost_nanos, result["spend_source"], agent["n_input_tokens"], totals["cost_nanos"]


async def test_the_floor_becomes_the_measure(db: Database) -> None:
    _, call_id = await settled_with_a_call_under_way(db)
    assert await stated(db) == (120, "measured_provisional", 10, 120)
    [trial] = await provisional_trials(db)
    await refine(db, trial)
    assert await stated(db) == (120, "measured_provisional", 10, 120)  # still under way
    await settle_call(db, call_id, measured(80, input_tokens=5, output_tokens=1))
    await refine(db, trial)
    assert await stated(db) == (200, "measured", 15, 200)
    await refine(db, trial)
    assert await stated(db) == (200, "measured", 15, 200)
    assert await provisional_trials(db) == []
    pool = await db.pool()
    lines = await pool.fetch("SELECT data FROM trace_events WHERE seq >= 1000000000 ORDER BY seq")
    assert len(lines) == 2
