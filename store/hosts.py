"""Hosts that hold boxes, and the boxes admitted to them: leases, authoritative and locked."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index
from sqlmodel import Field

from store.database import Row, json_column, time_column


class Host(Row, table=True):
    """A lease of one worker host. It is dead only when the lease has expired and another live host
    serves the provider. `providers` maps provider → {"ok": bool, "reason": str | null}."""

    __tablename__ = "hosts"
    id: str = Field(primary_key=True)
    providers: dict[str, Any] = Field(sa_column=json_column())
    default_provider: str
    default_reason: str
    queue: str
    follow_queue: str
    cpus: float
    memory_mb: int
    code_version: str
    lease_expires_at: datetime = Field(sa_column=time_column())


class BoxLease(Row, table=True):
    """A lease of room on a host, taken before the box is made and given back when it is gone.

    `name` is `BoxTag.name`; `state` is `reserved`, `live` or `gone`.
    """

    __tablename__ = "box_leases"
    __table_args__ = (Index("box_leases_of_host", "host_id", "state"),)
    name: str = Field(primary_key=True)
    host_id: str
    provider: str
    trial_id: str = Field(index=True)
    attempt_number: int
    cpus: float
    memory_mb: int
    state: str
    box_id: str | None = None
    reserved_at: datetime = Field(sa_column=time_column())
    gone_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
