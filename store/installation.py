"""This installation's identity, minted by the first migration; external resources carry it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlmodel import Field, select

from store.database import Database, Row, time_column


class Installation(Row, table=True):
    """A plan: exactly one row."""

    __tablename__ = "installation"
    id: str = Field(primary_key=True)
    created_at: datetime = Field(sa_column=time_column())


async def installation_id(db: Database) -> str:
    """The id that tags everything this installation makes."""
    async with db.session() as session:
        row: Any = (await session.execute(select(Installation))).scalar_one()
        return str(row.id)
