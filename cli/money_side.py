"""What `evolve admin` does about money in the database itself: budgets, provider keys, prices.

Part of the composition root: it may import the store, lazily.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from cli.errors import CliError
from cli.store_side import database_url, naming_the_database
from domain.prices import ModelPrice, Rates, ServiceRates

if TYPE_CHECKING:
    from store.budgets import Credits, MonthlyBudget
    from store.database import Database
    from store.job_spend import ModelSpend
    from store.provider_keys import ListedProviderKey


async def set_provider_key(provider: str, email: str | None, value: str) -> str:
    """Seal and store a key, the operator's when `email` is None; returns its fingerprint."""
    from cli.credentials import home_directory
    from store import provider_keys
    from store.server_secret import VARIABLE, ServerSecret

    secret = ServerSecret.read(os.environ.get(VARIABLE), home_directory())
    async with _database() as db:
        owner = await _owner(db, email)
        return await provider_keys.set_provider_key(db, secret, provider, value, owner)


async def remove_provider_key(provider: str, email: str | None) -> None:
    """Forget a key. Raises `CliError` when there is none."""
    from store import provider_keys

    async with _database() as db:
        if not await provider_keys.remove_provider_key(db, provider, await _owner(db, email)):
            whose = "the operator" if email is None else email
            raise CliError(f"there is no {provider} key of {whose}", code="not_found")


async def list_provider_keys() -> list[ListedProviderKey]:
    """All of them, without their values."""
    from store import provider_keys

    async with _database() as db:
        return await provider_keys.list_provider_keys(db)


async def set_credits(email: str, balance_nanos: int | None) -> None:
    """What a user may still spend; None is without limit."""
    from store import budgets

    async with _database() as db:
        await budgets.set_credits(db, await _user_id(db, email), balance_nanos)


async def set_budget(org: str, limit_nanos: int | None) -> None:
    """What an organization may spend a month; None is without limit."""
    from store import budgets

    async with _database() as db:
        org_id = await _value(db, "SELECT id FROM organizations WHERE slug = $1 OR id = $1", org)
        if org_id is None:
            raise CliError(f"there is no organization {org}", code="org_not_found")
        await budgets.set_monthly_budget(db, org_id, limit_nanos)


async def set_platform_stop(is_on: bool) -> None:
    """Admit no call of anybody, or admit calls again."""
    from store import budgets

    async with _database() as db:
        await budgets.set_platform_stop(db, is_on)


async def limits() -> tuple[bool, list[Credits], list[MonthlyBudget]]:
    """Whether the platform is stopped, and every limit that was set."""
    from store import budgets

    async with _database() as db:
        is_stopped = await budgets.is_platform_stopped(db)
        return is_stopped, await budgets.list_credits(db), await budgets.list_budgets(db)


async def job_spend(job_id: str) -> list[ModelSpend]:
    """What a job's calls came to. Raises `CliError` when there is neither such a job nor calls of it."""
    from store import job_spend as spending

    async with _database() as db:
        found = await spending.job_spend(db, job_id)
        if not found and not await _value(db, "SELECT EXISTS (SELECT FROM jobs WHERE id = $1)", job_id):
            raise CliError(f"there is no job {job_id}", code="job_not_found")
        return found


async def set_price(provider: str, model: str, rates: Rates | None) -> str:
    """State a model's price, or take back a stated one; returns the version."""
    from store import prices

    async with _database() as db:
        price = None if rates is None else ServiceRates(rates=rates)
        return await prices.set_price(db, provider, model, price)


async def list_prices(provider: str | None) -> list[ModelPrice]:
    """Those that the operator stated; with a provider, all that are in force there."""
    from store import prices

    async with _database() as db:
        if provider is None:
            return await prices.operator_prices(db)
        book = await prices.current_prices(db)
        found = (book.price(provider, model) for model in book.models(provider))
        return [price for price in found if price is not None]


async def _owner(db: Database, email: str | None) -> str:
    from store.provider_keys import OPERATOR

    return OPERATOR if email is None else await _user_id(db, email)


async def _user_id(db: Database, email: str) -> str:
    user_id = await _value(db, "SELECT id FROM users WHERE email = $1", email)
    if user_id is None:
        raise CliError(
            f"no user has the address {email}: `evolve admin user add` makes one", code="not_found"
        )
    return str(user_id)


async def _value(db: Database, query: str, name: str) -> Any:
    async with db.transaction() as connection:
        return await connection.fetchval(query, name)


@asynccontextmanager
async def _database() -> AsyncGenerator[Database]:
    from store.database import Database

    db = Database(database_url())
    try:
        with naming_the_database():
            yield db
    finally:
        await db.close()
