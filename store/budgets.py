"""Budgets above a trial: a user's credits, an organization's month, the platform's stop.

No row means no limit. A limit that was set and lifted keeps its row with a null, so that what calls hold
on it stays counted.
"""

from __future__ import annotations

from datetime import date, datetime

from sqlmodel import Field

from store.database import Row, nanos_column, time_column


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
