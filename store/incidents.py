"""What went wrong outside of any trial and a person should look at, until it is over."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Column, Index, text
from sqlmodel import Field

from store.database import Database, Row, time_column


class IncidentKind(StrEnum):
    DELETE_REFUSED = "delete_refused"
    """A provider does not let us destroy a box of ours; `subject` is the box."""


class Incident(Row, table=True):
    """A record, for operators: one open row a kind and subject, which counts how often it was met."""

    __tablename__ = "incidents"
    __table_args__ = (
        Index("incidents_open", "kind", "subject", unique=True, postgresql_where=text("resolved_at IS NULL")),
    )
    id: int | None = Field(default=None, sa_column=Column(BigInteger, primary_key=True, autoincrement=True))
    kind: str
    subject: str
    message: str
    n_times: int
    first_at: datetime = Field(sa_column=time_column())
    last_at: datetime = Field(sa_column=time_column())
    resolved_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


MESSAGE_MAX_CHARS = 1000
_NOTE = """
INSERT INTO incidents (kind, subject, message, n_times, first_at, last_at)
VALUES ($1, $2, $3, 1, now(), now())
ON CONFLICT (kind, subject) WHERE resolved_at IS NULL
DO UPDATE SET message = excluded.message, n_times = incidents.n_times + 1, last_at = now()
"""
_RESOLVE = """
UPDATE incidents SET resolved_at = now() WHERE kind = $1 AND subject = $2 AND resolved_at IS NULL
"""


async def note_incident(db: Database, kind: IncidentKind, subject: str, message: str) -> None:
    """Open an incident, or count it once more where it is open."""
    pool = await db.pool()
    await pool.execute(_NOTE, kind.value, subject, message[:MESSAGE_MAX_CHARS])


async def resolve_incident(db: Database, kind: IncidentKind, subject: str) -> None:
    """It is over; without an open one nothing happens."""
    pool = await db.pool()
    await pool.execute(_RESOLVE, kind.value, subject)


async def list_incidents(db: Database, *, is_open_only: bool) -> list[Any]:
    """Rows of the table, the newest first."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT * FROM incidents WHERE resolved_at IS NULL OR NOT $1 ORDER BY last_at DESC LIMIT 500",
        is_open_only,
    )
