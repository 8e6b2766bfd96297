"""The ledger of calls: what is admitted, what is held, what is booked."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from domain.usage import CallUsage
from domain.vocabulary import SpendSource
from store.attempt_spend import attempt_calls, attempt_spend
from store.database import Database, now
from store.keys import KeyPlan, revoke_keys
from store.spend import NewCall, Refusal, book_open_holds, record_refusal, reserve, settle_call
from tests.store.money_factory import at_once, ended, measured, minted, new_call


async def counters(db: Database, plan: KeyPlan) -> tuple[int, int, int]:
    """`spent_nanos`, `held_nanos`, `n_open` of a key."""
    pool = await db.pool()
    row = await pool.fetchrow(
        "SELECT spent_nanos, held_nanos, n_open FROM gateway_keys WHERE id = $1", plan.key_id
    )
    return tuple(row)


async def call_row(db: Database, call: NewCall) -> Any:
    pool = await db.pool()
    return await pool.fetchrow("SELECT * FROM gateway_calls WHERE id = $1", call.call_id)


async def admitted(db: Database, plan: KeyPlan, hold_nanos: int, **changes: Any) -> NewCall:
    call = new_call(plan, hold_nanos, **changes)
    assert await reserve(db, call) is None
    return call


async def refused(db: Database, plan: KeyPlan, hold_nanos: int) -> Refusal:
    refusal = await reserve(db, new_call(plan, hold_nanos))
    assert refusal is not None
    return refusal


async def test_sixty_four_calls_at_once_never_pass_the_cap(db: Database) -> None:
    plan = await minted(db, cap_nanos=1000)
    calls = [new_call(plan, 90) for _ in range(64)]
    answers = await at_once(db, "gateway_keys", (reserve(db, call) for call in calls))
    assert sum(answer is None for answer in answers) == 11
    assert {answer.kind for answer in answers if answer} == {"own_cap"}
    assert await counters(db, plan) == (0, 990, 11)


async def test_reserving_and_settling_at_once_keeps_the_sums(db: Database) -> None:
    plan = await minted(db, cap_nanos=1000)
    peak = 0

    async def run(number: int) -> int:
        nonlocal peak
        call = new_call(plan, 100)
        if await reserve(db, call) is not None:
            return 0
        spent, held, _ = await counters(db, plan)
        peak = max(peak, spent + held)
        await settle_call(db, call.call_id, measured(number % 50))
        return number % 50

    spent = sum(await asyncio.gather(*(run(number) for number in range(64))))
    assert await counters(db, plan) == (spent, 0, 0)
    assert peak <= 1000


async def test_a_hold_is_released_by_the_settle_and_the_cost_booked(db: Database) -> None:
    plan = await minted(db)
    call = await admitted(db, plan, 1000)
    assert await counters(db, plan) == (0, 1000, 1)
    await settle_call(db, call.call_id, measured(300, input_tokens=7, output_tokens=3))
    assert await counters(db, plan) == (300, 0, 0)
    assert (await refused(db, plan, 701)).kind == "own_cap"
    await admitted(db, plan, 700)


async def test_a_settle_counts_once(db: Database) -> None:
    plan = await minted(db)
    call = await admitted(db, plan, 500)
    await asyncio.gather(*(settle_call(db, call.call_id, measured(200)) for _ in range(8)))
    await settle_call(db, call.call_id, ended("held"))
    assert await counters(db, plan) == (200, 0, 0)
    await settle_call(db, "no such call", measured(1))


async def test_a_call_that_asks_twice_holds_once(db: Database) -> None:
    plan = await minted(db)
    call = new_call(plan, 600)
    assert [await reserve(db, call), await reserve(db, call)] == [None, None]
    assert await counters(db, plan) == (0, 600, 1)


async def test_a_refused_call_may_ask_again_and_is_one_row(db: Database) -> None:
    plan = await minted(db)
    first = await admitted(db, plan, 800)
    second = new_call(plan, 500)
    refusal = await reserve(db, second)
    assert refusal is not None
    assert (refusal.kind, refusal.is_passing) == ("own_cap", True)
    await settle_call(db, first.call_id, measured(100))
    assert await reserve(db, second) is None
    assert [call.status for call in await attempt_calls(db, plan.trial_id, 1)] == ["measured", "open"]


async def test_a_cost_above_its_hold_is_booked_in_full(db: Database) -> None:
    plan = await minted(db)
    call = await admitted(db, plan, 100)
    await settle_call(db, call.call_id, measured(1500))
    assert await counters(db, plan) == (1500, 0, 0)
    refusal = await refused(db, plan, 0)
    assert (refusal.kind, refusal.is_passing) == ("own_cap", False)


async def test_a_call_of_unknown_usage_is_booked_at_its_hold(db: Database) -> None:
    plan = await minted(db)
    call = await admitted(db, plan, 400)
    await settle_call(db, call.call_id, ended("held", is_upstream_cut=True))
    assert await counters(db, plan) == (400, 0, 0)
    row = await call_row(db, call)
    assert (row["status"], row["cost_nanos"], row["input_tokens"], row["is_upstream_cut"]) == (
        "held", 400, None, True,
    )  # fmt: skip


async def test_a_call_that_the_provider_refused_costs_nothing(db: Database) -> None:
    plan = await minted(db)
    for status in ("refused_upstream", "failed"):
        call = await admitted(db, plan, 400)
        await settle_call(db, call.call_id, ended(status, http_status=429, error_kind="rate_limit"))
        assert (await call_row(db, call))["cost_nanos"] == 0
    assert await counters(db, plan) == (0, 0, 0)


async def test_no_more_calls_at_once_than_the_key_allows(db: Database) -> None:
    plan = await minted(db, max_in_flight=2)
    first = await admitted(db, plan, 1)
    await admitted(db, plan, 1)
    refusal = await refused(db, plan, 1)
    assert (refusal.kind, refusal.is_passing) == ("in_flight", True)
    await settle_call(db, first.call_id, measured(1))
    await admitted(db, plan, 1)


async def test_a_dead_key_admits_nothing_and_settles_what_is_under_way(db: Database) -> None:
    plan = await minted(db)
    call = await admitted(db, plan, 10)
    await revoke_keys(db, plan.trial_id, 1)
    assert (await refused(db, plan, 1)).kind == "key_dead"
    await settle_call(db, call.call_id, measured(3))
    assert await counters(db, plan) == (3, 0, 0)
    expired = await minted(db, expires_at=now() - timedelta(seconds=1))
    assert (await refused(db, expired, 1)).kind == "key_dead"
    unknown = new_call(plan, 1, key_id="0" * 32)
    refusal = await reserve(db, unknown)
    assert refusal is not None
    assert refusal.kind == "key_dead"


async def test_a_gateway_that_died_leaves_its_open_calls_at_their_holds(db: Database) -> None:
    plan = await minted(db)
    lost = await admitted(db, plan, 300, started_at=now() - timedelta(minutes=1))
    elsewhere = await admitted(db, plan, 50, gateway_id="another", started_at=now() - timedelta(minutes=1))
    start = now()
    fresh = await admitted(db, plan, 70)
    assert await book_open_holds(db, "gateway", start) == 1
    assert await book_open_holds(db, "gateway", start) == 0
    assert await counters(db, plan) == (300, 120, 2)
    statuses = [(await call_row(db, call))["status"] for call in (lost, elsewhere, fresh)]
    assert statuses == ["held", "open", "open"]


async def test_the_measure_that_comes_after_all_corrects_a_booked_hold(db: Database) -> None:
    plan = await minted(db)
    call = await admitted(db, plan, 300)
    await book_open_holds(db, "gateway", now())
    await settle_call(db, call.call_id, measured(40, output_tokens=4))
    assert await counters(db, plan) == (40, 0, 0)
    assert (await call_row(db, call))["status"] == "measured"


async def test_an_attempt_is_summed_over_its_calls(db: Database) -> None:
    plan = await minted(db)
    usages = (
        {"input_tokens": 10, "cached_input_tokens": 5, "output_tokens": 3, "reasoning_tokens": 2},
        {"input_tokens": 1, "cache_write_5m_tokens": 4, "cache_write_1h_tokens": 6, "output_tokens": 1},
    )
    for cost, usage in zip((100, 20), usages, strict=True):
        call = await admitted(db, plan, 200)
        await settle_call(db, call.call_id, measured(cost, **usage))
    other_role = await minted(db, trial_id=plan.trial_id, role="judge")
    await admitted(db, other_role, 200)
    spend = await attempt_spend(db, plan.trial_id, 1, "agent")
    assert (spend.spent_nanos, spend.measured_nanos, spend.open_hold_nanos) == (120, 120, 0)
    assert (spend.n_calls, spend.source) == (2, SpendSource.MEASURED)
    assert spend.usage == CallUsage(
        input_tokens=11, cached_input_tokens=5, cache_write_5m_tokens=4, cache_write_1h_tokens=6,
        output_tokens=4, reasoning_tokens=2,
    )  # fmt: skip


async def test_steps_share_the_attempts_cap_and_are_told_apart(db: Database) -> None:
    first = await minted(db, step="one")
    spent, held = await admitted(db, first, 400), await admitted(db, first, 250)
    await settle_call(db, spent.call_id, measured(300, output_tokens=3))
    await revoke_keys(db, first.trial_id, 1, "agent")
    second = await minted(db, step="two", trial_id=first.trial_id)
    assert (await refused(db, second, 451)).kind == "own_cap"
    await admitted(db, second, 450)
    third = await minted(db, step="three", trial_id=first.trial_id)
    assert (await refused(db, third, 1)).kind == "own_cap"
    await settle_call(db, held.call_id, measured(10, output_tokens=1))
    spends = [await attempt_spend(db, first.trial_id, 1, "agent", step) for step in ("one", "two", None)]
    assert [spend.measured_nanos for spend in spends] == [310, 0, 310]
    assert [spend.usage.output_tokens for spend in spends] == [4, 0, 4]


async def test_minting_a_steps_key_again_leaves_its_cap(db: Database) -> None:
    plan = await minted(db, step="one")
    call = await admitted(db, plan, 600)
    await settle_call(db, call.call_id, measured(600))
    await minted(db, step="one", trial_id=plan.trial_id)
    assert (await refused(db, plan, 401)).kind == "own_cap"
    await admitted(db, plan, 400)


async def test_the_source_says_how_far_the_spend_is_known(db: Database) -> None:
    plan = await minted(db)
    sources = [(await attempt_spend(db, plan.trial_id, 1, "agent")).source]
    first = await admitted(db, plan, 100)
    sources.append((await attempt_spend(db, plan.trial_id, 1, "agent")).source)
    await settle_call(db, first.call_id, ended("held"))
    unmeasured = await attempt_spend(db, plan.trial_id, 1, "agent")
    second = await admitted(db, plan, 100)
    await settle_call(db, second.call_id, measured(30))
    partly = await attempt_spend(db, plan.trial_id, 1, "agent")
    assert sources == [SpendSource.MEASURED, SpendSource.MEASURED_PROVISIONAL]
    assert (unmeasured.source, unmeasured.measured_nanos) == (SpendSource.ASSUMED_CAP, 0)
    assert (unmeasured.spent_nanos, unmeasured.n_unmeasured) == (100, 1)
    assert (partly.source, partly.measured_nanos, partly.spent_nanos) == (
        SpendSource.MEASURED_PROVISIONAL, 30, 130,
    )  # fmt: skip


async def test_refusals_and_the_last_failure_are_facts_of_the_attempt(db: Database) -> None:
    plan = await minted(db)
    call = await admitted(db, plan, 900)
    await settle_call(db, call.call_id, ended("refused_upstream", http_status=400, error_kind="context"))
    await refused(db, plan, 2000)
    refused_last = await attempt_spend(db, plan.trial_id, 1, "agent")
    await admitted(db, plan, 10)
    went_on = await attempt_spend(db, plan.trial_id, 1, "agent")
    assert refused_last.refusals == {"own_cap": 1}
    assert (refused_last.last_refusal, refused_last.n_calls_after_refusal) == ("own_cap", 0)
    assert (refused_last.last_http_status, refused_last.last_error_kind) == (400, "context")
    assert (went_on.last_refusal, went_on.n_calls_after_refusal) == ("own_cap", 1)


async def test_a_call_that_began_while_another_waited_to_be_refused_did_not_go_on_after_it(
    db: Database,
) -> None:
    plan = await minted(db)
    waiting = new_call(plan, 2000, started_at=now() - timedelta(minutes=3))
    await admitted(db, plan, 10, started_at=now() - timedelta(minutes=1))
    assert await reserve(db, waiting) is not None
    ended_by_it = await attempt_spend(db, plan.trial_id, 1, "agent")
    await admitted(db, plan, 10)
    went_on = await attempt_spend(db, plan.trial_id, 1, "agent")
    assert (ended_by_it.last_refusal, ended_by_it.n_calls_after_refusal) == ("own_cap", 0)
    assert went_on.n_calls_after_refusal == 1


async def test_the_refusal_that_was_told_last_is_the_last_whenever_it_was_asked_for(db: Database) -> None:
    plan = await minted(db, cap_nanos=1000)
    early = new_call(plan, 2000, started_at=now() - timedelta(minutes=3))
    await record_refusal(db, new_call(plan, 0), "unpriced")
    assert await reserve(db, early) is not None
    spend = await attempt_spend(db, plan.trial_id, 1, "agent")
    assert (spend.refusals, spend.last_refusal) == ({"unpriced": 1, "own_cap": 1}, "own_cap")
    await record_refusal(db, early, "in_flight")
    spend = await attempt_spend(db, plan.trial_id, 1, "agent")
    assert (spend.refusals, spend.last_refusal) == ({"unpriced": 1, "in_flight": 1}, "in_flight")


async def test_an_admitted_call_is_not_made_refused(db: Database) -> None:
    plan = await minted(db)
    call = await admitted(db, plan, 100)
    await record_refusal(db, call, "in_flight")
    assert (await call_row(db, call))["status"] == "open"


async def test_the_calls_of_an_attempt_come_in_order_with_what_was_changed(db: Database) -> None:
    plan = await minted(db)
    first = await admitted(db, plan, 10, adjustments=("clamped max_tokens 9000 to 100",))
    await settle_call(db, first.call_id, measured(4, input_tokens=2))
    await refused(db, plan, 2000)
    calls = await attempt_calls(db, plan.trial_id, 1)
    assert [(call.status, call.refusal, call.cost_nanos) for call in calls] == [
        ("measured", None, 4),
        ("refused", "own_cap", None),
    ]
    assert calls[0].adjustments == ("clamped max_tokens 9000 to 100",)
    assert (calls[0].usage, calls[1].usage) == (CallUsage(input_tokens=2), None)
