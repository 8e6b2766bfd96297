"""Budgets above a trial: a user's credits, an organization's month, the platform's stop.

No row means no limit. A limit that was set and lifted keeps its row with a null, so that what calls hold
on it stays counted.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from sqlmodel import Field

from domain.errors import ApiError
from store.database import Database, Row, nanos_column, time_column
from store.spend import MESSAGES, Refusal, RefusalKind


class UserCredits(Row, table=True):
    """A ledger: what a user may still spend; null is without limit. Locked by whoever reserves."""

    __tablename__ = "user_credits"
    user_id: str = Field(primary_key=True)
    balance_nanos: int | None = Field(default=None, sa_column=nanos_column(nullable=True))
    held_nanos: int = Field(sa_column=nanos_column())
    updated_at: datetime = Field(sa_column=time_column())


class OrganizationBudget(Row, table=True):
    """A ledger: an organization's limit a calendar month (UTC), null without limit, and its present month.

    `month` is the first day of the month that `spent_nanos` and `held_nanos` are of. Locked by whoever
    reserves.
    """

    __tablename__ = "organization_budgets"
    org_id: str = Field(primary_key=True)
    limit_nanos: int | None = Field(default=None, sa_column=nanos_column(nullable=True))
    month: date
    spent_nanos: int = Field(sa_column=nanos_column())
    held_nanos: int = Field(sa_column=nanos_column())
    updated_at: datetime = Field(sa_column=time_column())


class PlatformStop(Row, table=True):
    """A ledger: while its one row (`id` 1) is on, no call is admitted."""

    __tablename__ = "platform_stop"
    id: int = Field(default=1, primary_key=True)
    is_on: bool
    updated_at: datetime = Field(sa_column=time_column())


class Credits(BaseModel):
    """What a user may still spend; `held_nanos` of it is held by calls under way."""

    model_config = ConfigDict(frozen=True)

    user_id: str
    email: str | None
    balance_nanos: int | None
    held_nanos: int


class MonthlyBudget(BaseModel):
    """An organization's limit a month and what its present month has come to."""

    model_config = ConfigDict(frozen=True)

    org_id: str
    slug: str
    limit_nanos: int | None
    spent_nanos: int
    held_nanos: int


_SET_CREDITS = """
INSERT INTO user_credits (user_id, balance_nanos, held_nanos, updated_at) VALUES ($1, $2, 0, now())
ON CONFLICT (user_id) DO UPDATE SET balance_nanos = excluded.balance_nanos, updated_at = now()
"""
# What the month came to before anybody set a limit counts too.
_SET_BUDGET = """
INSERT INTO organization_budgets (org_id, limit_nanos, month, spent_nanos, held_nanos, updated_at)
SELECT $1::text, $2::bigint, this.month,
       (SELECT coalesce(sum(cost_nanos), 0) FROM gateway_calls
        WHERE org_id = $1 AND started_at >= this.month::timestamp AT TIME ZONE 'UTC'),
       0, now()
FROM (SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date AS month) this
ON CONFLICT (org_id) DO UPDATE SET limit_nanos = excluded.limit_nanos, updated_at = now()
"""
_SET_STOP = """
INSERT INTO platform_stop (id, is_on, updated_at) VALUES (1, $1, now())
ON CONFLICT (id) DO UPDATE SET is_on = excluded.is_on, updated_at = now()
"""
_SPENT_UP = """
SELECT CASE
  WHEN EXISTS (SELECT FROM platform_stop WHERE is_on) THEN 'platform'
  WHEN EXISTS (SELECT FROM user_credits WHERE user_id = $1 AND balance_nanos <= 0) THEN 'user'
  WHEN EXISTS (SELECT FROM organization_budgets WHERE org_id = $2 AND limit_nanos <= CASE
    WHEN month < date_trunc('month', now() AT TIME ZONE 'UTC')::date THEN 0 ELSE spent_nanos END) THEN 'team'
END
"""
_CREDITS = """
SELECT c.user_id, u.email, c.balance_nanos, c.held_nanos
FROM user_credits c LEFT JOIN users u ON u.id = c.user_id ORDER BY u.email, c.user_id
"""
_BUDGETS = """
SELECT b.org_id, o.slug, b.limit_nanos,
       CASE WHEN b.month < this.month THEN 0 ELSE b.spent_nanos END AS spent_nanos,
       CASE WHEN b.month < this.month THEN 0 ELSE b.held_nanos END AS held_nanos
FROM organization_budgets b JOIN organizations o ON o.id = b.org_id,
     (SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date AS month) this
ORDER BY o.slug
"""

_MONTH_SPEND = """
SELECT (SELECT limit_nanos FROM organization_budgets WHERE org_id = $1) AS limit_nanos,
       coalesce(sum(cost_nanos), 0)::bigint AS spent_nanos, now() AS at
FROM gateway_calls
WHERE org_id = $1 AND started_at >= date_trunc('month', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
"""


async def set_credits(db: Database, user_id: str, balance_nanos: int | None) -> None:
    """Set what a user may still spend; None lifts the limit."""
    await (await db.pool()).execute(_SET_CREDITS, user_id, balance_nanos)


async def set_monthly_budget(db: Database, org_id: str, limit_nanos: int | None) -> None:
    """Set what an organization may spend a calendar month (UTC), the present one included; None lifts it."""
    async with db.transaction() as connection:
        # Settles that saw no row are in the ledger before it is summed, later ones find the row.
        await connection.execute("LOCK TABLE organization_budgets IN EXCLUSIVE MODE")
        await connection.execute(_SET_BUDGET, org_id, limit_nanos)


async def set_platform_stop(db: Database, is_on: bool) -> None:
    """Admit no further call of anybody, or admit calls again. Calls under way are not touched."""
    await (await db.pool()).execute(_SET_STOP, is_on)


async def is_platform_stopped(db: Database) -> bool:
    """Whether the stop is on."""
    return bool(await (await db.pool()).fetchval("SELECT EXISTS (SELECT FROM platform_stop WHERE is_on)"))


async def budget_refusal(db: Database, owner_user_id: str, org_id: str) -> Refusal | None:
    """Whether a budget above a trial is spent up already, so that its first call would be refused.

    The wallet check before a box is made (contract 6.2).
    """
    kind: RefusalKind | None = await (await db.pool()).fetchval(_SPENT_UP, owner_user_id, org_id)
    return None if kind is None else Refusal(kind=kind, message=MESSAGES[kind])


async def refuse_without_credits(connection: Any, user_id: str) -> None:
    """Raise `insufficient_credits` for a user whose balance is zero or less (contract 6.1, item 12)."""
    balance = await connection.fetchval("SELECT balance_nanos FROM user_credits WHERE user_id = $1", user_id)
    if balance is not None and balance <= 0:
        raise ApiError(
            "insufficient_credits", "No credits are left: a job needs some, whoever's key it uses."
        )


async def list_credits(db: Database) -> list[Credits]:
    """Of every user for whom they were ever set."""
    return [Credits(**row) for row in await (await db.pool()).fetch(_CREDITS)]


async def list_budgets(db: Database) -> list[MonthlyBudget]:
    """Of every organization for which one was ever set."""
    return [MonthlyBudget(**row) for row in await (await db.pool()).fetch(_BUDGETS)]


async def month_spend(db: Database, org_id: str) -> tuple[int | None, int, datetime]:
    """An organization's monthly limit, what its calls of this month (UTC) came to, and when that was read."""
    row = await (await db.pool()).fetchrow(_MONTH_SPEND, org_id)
    return row["limit_nanos"], row["spent_nanos"], row["at"]
