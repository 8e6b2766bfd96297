"""Prices that the operator states, for models that the packaged book does not price or prices wrongly."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Index
from sqlmodel import Field

from domain.prices import ModelPrice, PriceBook, ServiceRates, price_book
from store.database import Database, Row, json_column, time_column


class OperatorPrice(Row, table=True):
    """A ledger, only added to, so that a call's `price_version` can always be read: the newest row of a
    model is its price; one with a null price takes it back. `price` is a `ServiceRates`."""

    __tablename__ = "operator_prices"
    __table_args__ = (Index("operator_prices_of_model", "provider", "model", "id"),)
    id: int | None = Field(default=None, sa_column=Column(BigInteger, primary_key=True, autoincrement=True))
    provider: str
    model: str
    price: dict[str, Any] | None = Field(default=None, sa_column=json_column(nullable=True))
    created_at: datetime = Field(sa_column=time_column())


_ADD = (
    "INSERT INTO operator_prices (provider, model, price, created_at) VALUES ($1, $2, $3, now()) RETURNING id"
)
_NEWEST = """
SELECT * FROM (SELECT DISTINCT ON (provider, model) id, provider, model, price FROM operator_prices
               ORDER BY provider, model, id DESC) newest
WHERE price IS NOT NULL ORDER BY provider, model
"""


async def set_price(db: Database, provider: str, model: str, price: ServiceRates | None) -> str:
    """State a model's price from now on, or take it back with None; returns the version."""
    document = None if price is None else price.model_dump(mode="json", exclude_none=True)
    row_id = await (await db.pool()).fetchval(_ADD, provider, model, document)
    return _version(row_id)


async def operator_prices(db: Database) -> list[ModelPrice]:
    """Those that stand, by provider and model."""
    return [
        ModelPrice(provider=row["provider"], model=row["model"], version=_version(row["id"]), **row["price"])
        for row in await (await db.pool()).fetch(_NEWEST)
    ]


async def current_prices(db: Database) -> PriceBook:
    """The packaged book with the operator's prices in place of its own."""
    return price_book().extended(await operator_prices(db))


def _version(row_id: int) -> str:
    return f"operator/{row_id}"
