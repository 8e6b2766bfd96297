"""Budgets above a trial: who is refused by what, and what counts."""

from __future__ import annotations

import pytest

from domain.errors import ApiError
from store.budgets import (
    budget_refusal,
    is_platform_stopped,
    list_budgets,
    list_credits,
    month_spend,
    set_credits,
    set_monthly_budget,
    set_platform_stop,
)
from store.database import Database
from store.keys import KeyPlan
from store.spend import RefusalKind, reserve, settle_call
from tests import finished_jobs
from tests.factories import make_owner
from tests.store.money_factory import at_once, ended, measured, minted, month_ago, new_call


async def kind_of(db: Database, plan: KeyPlan, hold_nanos: int) -> tuple[RefusalKind, bool] | None:
    refusal = await reserve(db, new_call(plan, hold_nanos))
    return None if refusal is None else (refusal.kind, refusal.is_passing)


async def spend(db: Database, plan: KeyPlan, hold_nanos: int, cost_nanos: int) -> None:
    call = new_call(plan, hold_nanos)
    assert await reserve(db, call) is None
    await settle_call(db, call.call_id, measured(cost_nanos))


async def balance(db: Database) -> tuple[int | None, int]:
    (credits,) = await list_credits(db)
    return credits.balance_nanos, credits.held_nanos


async def month(db: Database) -> tuple[int, int]:
    pool = await db.pool()
    return tuple(await pool.fetchrow("SELECT spent_nanos, held_nanos FROM organization_budgets"))


async def test_credits_are_held_and_spent(db: Database) -> None:
    await set_credits(db, "ann", 500)
    plan, other = await minted(db), await minted(db, owner_user_id="bob")
    call = new_call(plan, 400)
    assert await reserve(db, call) is None
    assert await balance(db) == (500, 400)
    assert await kind_of(db, plan, 101) == ("user", True)
    assert await kind_of(db, other, 900) is None
    await settle_call(db, call.call_id, measured(450))
    assert await balance(db) == (50, 0)
    assert await kind_of(db, plan, 51) == ("user", False)
    assert await kind_of(db, plan, 50) is None


async def test_keys_of_one_user_never_pass_the_credits_together(db: Database) -> None:
    await set_credits(db, "ann", 1000)
    plans = [await minted(db) for _ in range(16)]
    calls = (kind_of(db, plans[number % len(plans)], 90) for number in range(64))
    answers = await at_once(db, "user_credits", calls)
    assert answers.count(None) == 11
    assert await balance(db) == (1000, 990)


async def test_a_month_of_an_organization_is_limited(db: Database) -> None:
    plan = await minted(db)
    await spend(db, plan, 200, 150)  # counts, though nobody had set a limit
    await set_monthly_budget(db, "lab", 500)
    assert await month(db) == (150, 0)
    assert await kind_of(db, plan, 351) == ("team", False)
    call = new_call(plan, 350)
    assert await reserve(db, call) is None
    assert await kind_of(db, plan, 100) == ("team", True)
    await settle_call(db, call.call_id, ended("failed"))
    assert await month(db) == (150, 0)


async def test_keys_of_one_organization_never_pass_its_month_together(db: Database) -> None:
    await set_monthly_budget(db, "lab", 1000)
    plans = [await minted(db, owner_user_id=f"user {number}") for number in range(16)]
    calls = (kind_of(db, plans[number % len(plans)], 90) for number in range(64))
    answers = await at_once(db, "organization_budgets", calls)
    assert answers.count(None) == 11
    assert await month(db) == (0, 990)


async def test_a_new_month_begins_at_nothing(db: Database) -> None:
    await set_monthly_budget(db, "lab", 500)
    plan = await minted(db)
    late = new_call(plan, 100)
    assert await reserve(db, late) is None
    pool = await db.pool()
    await pool.execute(
        "UPDATE organization_budgets SET month = $1, spent_nanos = 500, held_nanos = 100", month_ago().date()
    )
    await pool.execute("UPDATE gateway_calls SET budget_month = $1", month_ago().date())
    assert await budget_refusal(db, "ann", "lab") is None
    await spend(db, plan, 400, 300)
    await settle_call(db, late.call_id, measured(90))  # of the month that is over
    assert await month(db) == (300, 0)


async def test_a_limit_that_is_lifted_and_set_again_keeps_what_is_held(db: Database) -> None:
    await set_credits(db, "ann", 500)
    plan = await minted(db)
    call = new_call(plan, 400)
    assert await reserve(db, call) is None
    await set_credits(db, "ann", None)
    assert await kind_of(db, plan, 600) is None
    await set_credits(db, "ann", 2000)
    assert await balance(db) == (2000, 1000)
    await settle_call(db, call.call_id, measured(100))
    assert await balance(db) == (1900, 600)


async def test_the_platform_stop_refuses_everybody_and_settles_go_on(db: Database) -> None:
    plan = await minted(db)
    call = new_call(plan, 100)
    assert await reserve(db, call) is None
    await set_platform_stop(db, True)
    assert await kind_of(db, plan, 1) == ("platform", False)
    assert await budget_refusal(db, "ann", "lab") is not None
    await settle_call(db, call.call_id, measured(10))
    await set_platform_stop(db, False)
    assert not await is_platform_stopped(db)
    assert await kind_of(db, plan, 1) is None


async def test_the_own_cap_is_named_before_a_budget_above_it(db: Database) -> None:
    plan = await minted(db, cap_nanos=100)
    await set_credits(db, "ann", 0)
    assert await kind_of(db, plan, 101) == ("own_cap", False)
    assert await kind_of(db, plan, 100) == ("user", False)


async def test_the_wallet_check_names_what_is_spent_up(db: Database) -> None:
    await set_credits(db, "ann", 1)
    await set_monthly_budget(db, "lab", 0)
    kinds = [await budget_refusal(db, user, org) for user, org in (("ann", "x"), ("ann", "lab"))]
    await set_credits(db, "ann", 0)
    kinds.append(await budget_refusal(db, "ann", "lab"))
    assert [refusal and refusal.kind for refusal in kinds] == [None, "team", "user"]


async def test_a_refused_call_holds_nothing_anywhere(db: Database) -> None:
    await set_credits(db, "ann", 500)
    await set_monthly_budget(db, "lab", 100)
    plan = await minted(db)
    assert await kind_of(db, plan, 200) == ("team", False)
    assert (await balance(db), await month(db)) == ((500, 0), (0, 0))


async def test_a_job_needs_credits_when_they_were_set(db: Database) -> None:
    owner = await make_owner(db)
    await finished_jobs.publish(db, "alpha")
    await set_credits(db, owner.id, 0)
    with pytest.raises(ApiError) as refused:
        await finished_jobs.accept(db)
    assert (refused.value.code, refused.value.status) == ("insufficient_credits", 402)
    await set_credits(db, owner.id, 1)
    await finished_jobs.accept(db)


async def test_budgets_are_listed_by_their_organizations(db: Database) -> None:
    owner = await make_owner(db)
    await set_monthly_budget(db, owner.default_org_id, 7)
    (budget,) = await list_budgets(db)
    assert (budget.slug, budget.limit_nanos, budget.spent_nanos) == ("personal", 7, 0)


async def test_what_a_month_came_to_is_known_with_or_without_a_limit(db: Database) -> None:
    plan = await minted(db)
    await spend(db, plan, 200, 150)
    earlier = new_call(plan, 200, started_at=month_ago())
    assert await reserve(db, earlier) is None
    await settle_call(db, earlier.call_id, measured(20))
    assert (await month_spend(db, "lab"))[:2] == (None, 150)
    await set_monthly_budget(db, "lab", 500)
    assert (await month_spend(db, "lab"))[:2] == (500, 150)
