"""Prices that the operator states, for models that the packaged book does not price or prices wrongly."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Index
from sqlmodel import Field

from store.database import Row, json_column, time_column


class OperatorPrice(Row, table=True):
    """A ledger, only added to, so that a call's `price_version` can always be read: the newest row of a
    model is its price; one with a null price takes it back. `price` is a `ModelPrice`'s rates."""

    __tablename__ = "operator_prices"
    __table_args__ = (Index("operator_prices_of_model", "provider", "model", "id"),)
    id: int | None = Field(default=None, sa_column=Column(BigInteger, primary_key=True, autoincrement=True))
    provider: str
    model: str
    price: dict[str, Any] | None = Field(default=None, sa_column=json_column(nullable=True))
    created_at: datetime = Field(sa_column=time_column())
