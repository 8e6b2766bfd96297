"""What went wrong outside of any trial and a person should look at, until it is over."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Column, Index, text
from sqlmodel import Field

from store.database import Database, Row, time_column


class IncidentKind(StrEnum):
    DELETE_REFUSED = "delete_refused"
    """A provider does not let us destroy a box of ours; `subject` is the box."""
    BOX_LEFT = "box_left"
    """A trial settled while its box could not be ended; `subject` is the box."""


BOX_KINDS = (IncidentKind.DELETE_REFUSED, IncidentKind.BOX_LEFT)
"""Over when the box is gone."""


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
UNMET_FOR = timedelta(days=1)
_NOTE = """
INSERT INTO incidents (kind, subject, message, n_times, first_at, last_at)
VALUES ($1, $2, $3, 1, now(), now())
ON CONFLICT (kind, subject) WHERE resolved_at IS NULL
DO UPDATE SET message = excluded.message, n_times = incidents.n_times + 1, last_at = now()
"""
_RESOLVE = """
UPDATE incidents SET resolved_at = now() WHERE kind = ANY($1) AND subject = $2 AND resolved_at IS NULL
"""
_RESOLVE_VANISHED = """
UPDATE incidents i SET resolved_at = now()
WHERE i.kind = ANY($1) AND i.resolved_at IS NULL AND i.last_at < $5 AND NOT (i.subject = ANY($4)) AND (
  EXISTS (SELECT FROM box_leases b WHERE b.name = i.subject AND b.host_id = $2 AND b.provider = ANY($3))
  OR i.last_at < now() - $6::interval AND NOT EXISTS (SELECT FROM box_leases b WHERE b.name = i.subject)
)
"""


async def note_incident(db: Database, kind: IncidentKind, subject: str, message: str) -> None:
    """Open an incident, or count it once more where it is open."""
    pool = await db.pool()
    await pool.execute(_NOTE, kind.value, subject, message[:MESSAGE_MAX_CHARS])


async def resolve_incident(db: Database, subject: str, *kinds: IncidentKind) -> None:
    """It is over; without an open one nothing happens."""
    pool = await db.pool()
    await pool.execute(_RESOLVE, [kind.value for kind in kinds], subject)


async def resolve_vanished(
    db: Database, host_id: str, providers: Collection[str], there: Collection[str], looked_at: datetime
) -> None:
    """Boxes of a host's providers that could not be ended, and were not there at `looked_at`.

    Whose box one without a lease was (an agent's build has none) nobody knows: a host that has it still would
    have tried to end it within `UNMET_FOR`.
    """
    kinds = [kind.value for kind in BOX_KINDS]
    pool = await db.pool()
    await pool.execute(_RESOLVE_VANISHED, kinds, host_id, list(providers), list(there), looked_at, UNMET_FOR)


async def list_incidents(db: Database, *, is_open_only: bool) -> list[Any]:
    """Rows of the table, the newest first."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT * FROM incidents WHERE resolved_at IS NULL OR NOT $1 ORDER BY last_at DESC LIMIT 500",
        is_open_only,
    )
