"""A call that was under way when its attempt settled is measured later: trial and job say what it cost."""

from __future__ import annotations

import asyncio
from typing import Any

from activities.metering import lane_of
from activities.refining import refine
from domain.money import usd_of_nanos
from domain.outcomes import AttemptEnd, agent_result, exception_of, judge_result, outcome_of
from domain.retries import RetryAfter, Settle, Verdict
from domain.stats import LaneReading
from domain.vocabulary import AttemptPhase
from store import record
from store.attempt_spend import attempt_spend
from store.database import Database
from store.fences import Fence
from store.keys import KeyRole
from store.record import PhaseChange
from store.refine import provisional_attempts
from store.settle import Settlement, settle
from store.spend import reserve, settle_call
from tests.finished_jobs import accept, publish, trial_ids
from tests.store.money_factory import measured, minted, new_call


async def new_trial(db: Database) -> tuple[str, str]:
    """The only trial of a job, and the job."""
    await publish(db, "alpha")
    job_id = await accept(db)
    [trial_id] = await trial_ids(db, job_id)
    return trial_id, job_id


async def two_calls(
    db: Database, trial_id: str, job_id: str, role: KeyRole = "agent", step: str = "", attempt_number: int = 1
) -> str:
    """One call is measured (10 tokens in, 2 out, 120 nanos), the other, which is returned, under way."""
    members: dict[str, Any] = {"role": role, "step": step, "attempt_number": attempt_number}
    plan = await minted(db, trial_id=trial_id, job_id=job_id, **members)
    one, two = new_call(plan, 300), new_call(plan, 300)
    assert await reserve(db, one) is None
    assert await reserve(db, two) is None
    await settle_call(db, one.call_id, measured(120, input_tokens=10, output_tokens=2))
    return two.call_id


async def end_call(db: Database, call_id: str) -> None:
    await settle_call(db, call_id, measured(80, input_tokens=5, output_tokens=1))


async def close(
    db: Database, trial_id: str, job_id: str, verdict: Verdict | None = None, **members: Any
) -> None:
    """Settle the first attempt number with what its lanes have spent by now."""
    await record.enter_phase(db, Fence(job_id, trial_id, 1, AttemptPhase.AGENT, 1), PhaseChange())
    failure = "the box died" if isinstance(verdict, RetryAfter) else None
    end = AttemptEnd(
        has_agent_ended=True,
        rewards={"reward": 1.0},
        failure=failure,
        spend=await lane(db, trial_id, "agent"),
        judge=await lane(db, trial_id, "judge"),
    )
    settlement = Settlement(
        outcome_of(end),
        exception=exception_of(end),
        members={"agent_result": agent_result(end), "judge_result": judge_result(end), **members},
        verdict=verdict or Settle(),
    )
    await settle(db, Fence(job_id, trial_id, 1, AttemptPhase.PERSIST, 1), settlement)


async def lane(db: Database, trial_id: str, role: KeyRole) -> LaneReading | None:
    spend = await attempt_spend(db, trial_id, 1, role)
    return lane_of(spend) if spend.n_calls else None


async def refine_all(db: Database) -> None:
    for attempt in await provisional_attempts(db):
        await asyncio.gather(*(refine(db, attempt) for _ in range(2)))


async def trial(db: Database) -> dict[str, Any]:
    return dict(await (await db.pool()).fetchrow("SELECT * FROM trials"))


async def totals(db: Database, *names: str) -> list[Any]:
    found = await (await db.pool()).fetchval("SELECT totals FROM jobs")
    return [found[name] for name in names]


async def test_the_floor_becomes_the_measure(db: Database) -> None:
    trial_id, job_id = await new_trial(db)
    call_id = await two_calls(db, trial_id, job_id)
    await close(db, trial_id, job_id)

    async def stated() -> tuple[float, str, int, list[Any]]:
        result = (await trial(db))["result"]
        agent = result["agent_result"]
        cost = await totals(db, "cost_nanos", "n_input_tokens")
        return agent["cost_usd"], result["spend_source"], agent["n_input_tokens"], cost

    floor = (usd_of_nanos(120), "measured_provisional", 10, [120, 10])
    assert await stated() == floor
    await refine_all(db)
    assert await stated() == floor  # still under way
    await end_call(db, call_id)
    await refine_all(db)
    assert await stated() == (usd_of_nanos(200), "measured", 15, [200, 15])
    assert (await trial(db))["status"] == "SCORED"
    assert await provisional_attempts(db) == []
    pool = await db.pool()
    lines = await pool.fetch("SELECT data FROM trace_events WHERE seq >= 1000000000 ORDER BY seq")
    assert len(lines) == 2


async def test_a_judges_floor_becomes_the_measure_while_its_agent_was_measured(db: Database) -> None:
    trial_id, job_id = await new_trial(db)
    await end_call(db, await two_calls(db, trial_id, job_id))
    call_id = await two_calls(db, trial_id, job_id, "judge")
    await close(db, trial_id, job_id)
    money = ("cost_nanos", "judge_cost_nanos", "n_input_tokens", "n_output_tokens")
    assert await totals(db, *money) == [320, 120, 25, 5]
    before = (await trial(db))["result"]
    await end_call(db, call_id)
    await refine_all(db)
    after = (await trial(db))["result"]
    assert after["judge_result"] == {
        "n_input_tokens": 15,
        "n_cache_tokens": 0,
        "n_output_tokens": 3,
        "cost_usd": usd_of_nanos(200),
    }
    assert after["judge_spend_source"] == "measured"
    assert after["agent_result"] == before["agent_result"]
    assert await totals(db, *money) == [400, 200, 30, 6]
    assert await provisional_attempts(db) == []


async def test_a_judge_is_refined_while_its_agents_call_is_under_way(db: Database) -> None:
    trial_id, job_id = await new_trial(db)
    agents = await two_calls(db, trial_id, job_id)
    judges = await two_calls(db, trial_id, job_id, "judge")
    await close(db, trial_id, job_id)
    await end_call(db, judges)
    await refine_all(db)
    assert await totals(db, "cost_nanos", "judge_cost_nanos") == [320, 200]
    await end_call(db, agents)
    await refine_all(db)
    assert await totals(db, "cost_nanos", "judge_cost_nanos") == [400, 200]


async def test_a_retired_attempts_floor_becomes_the_measure_and_its_successor_is_left_alone(
    db: Database,
) -> None:
    trial_id, job_id = await new_trial(db)
    calls = [await two_calls(db, trial_id, job_id), await two_calls(db, trial_id, job_id, "judge")]
    await close(db, trial_id, job_id, RetryAfter(delay_sec=1, max_retries=1))
    successor = Fence(job_id, trial_id, 2, AttemptPhase.BOOT, 1)
    await record.enter_phase(db, successor, PhaseChange(members={"agent_version": "1.2"}))
    before = await trial(db)
    [retired] = before["retries"]
    assert retired["cost_usd"] == usd_of_nanos(240)
    for call_id in calls:
        await end_call(db, call_id)
    await refine_all(db)
    after = await trial(db)
    [refined] = after["retries"]
    assert refined["cost_usd"] == usd_of_nanos(400)
    assert refined["x_spend"]["judge"]["spend_source"] == "measured"
    assert {**refined, "cost_usd": None, "x_spend": None} == {**retired, "cost_usd": None, "x_spend": None}
    assert {**after, "retries": None} == {**before, "retries": None}
    assert await totals(
        db, "cost_nanos", "judge_cost_nanos", "n_input_tokens", "n_retries", "n_unmeasured_trials"
    ) == [400, 200, 30, 1, 0]
    assert await provisional_attempts(db) == []
    # It still holds its place: the refinement has taken no fence.
    assert await record.enter_phase(db, successor, PhaseChange())


async def test_a_steps_floor_becomes_the_measure_with_its_trials(db: Database) -> None:
    trial_id, job_id = await new_trial(db)
    await end_call(db, await two_calls(db, trial_id, job_id, step="one"))
    call_id = await two_calls(db, trial_id, job_id, step="two")
    steps = [
        {
            "step_name": "one",
            "agent_result": {"n_input_tokens": 15, "cost_usd": usd_of_nanos(200), "metadata": {}},
        },
        {
            "step_name": "two",
            "agent_result": {"n_input_tokens": 10, "cost_usd": usd_of_nanos(120), "metadata": {}},
        },
        {"step_name": "three", "agent_result": None},
    ]
    await close(db, trial_id, job_id, step_results=steps)
    await end_call(db, call_id)
    await refine_all(db)
    result = (await trial(db))["result"]
    one, two, three = (step["agent_result"] for step in result["step_results"])
    assert (one["cost_usd"], one["n_input_tokens"], two["cost_usd"], two["n_input_tokens"]) == (
        usd_of_nanos(200), 15, usd_of_nanos(200), 15,
    )  # fmt: skip
    assert (two["metadata"], three) == ({}, None)
    assert result["agent_result"]["cost_usd"] == usd_of_nanos(400)
