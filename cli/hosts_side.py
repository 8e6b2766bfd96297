"""What `evolve admin host` does: in the database, and in Temporal for the trials of a dropped host.

Part of the composition root: it may import the store and the activities, lazily.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cli.errors import CliError
from cli.reaper_side import connect, open_database

if TYPE_CHECKING:
    from store.database import Database


@dataclass(frozen=True)
class HostRow:
    """A host as it is listed. `providers` maps each that it serves to why it is paused there, or None."""

    id: str
    is_live: bool
    lease_expires_at: datetime
    providers: dict[str, str | None]
    n_boxes: int
    used_memory_mb: int
    memory_mb: int
    code_version: str


@dataclass(frozen=True)
class DroppedHost:
    """How many trials were under way there, and how many of them know already that it is dropped."""

    n_trials: int
    n_told: int


async def list_hosts() -> list[HostRow]:
    """By name."""
    from store import hosts

    async with open_database() as db:
        rows = await hosts.list_hosts(db)
    return [_row(row) for row in rows]


def _row(row: Any) -> HostRow:
    served = {name: offer.get("paused") for name, offer in row["providers"].items() if offer["ok"]}
    return HostRow(
        id=row["id"],
        is_live=row["is_live"],
        lease_expires_at=row["lease_expires_at"],
        providers=served,
        n_boxes=row["n_boxes"],
        used_memory_mb=row["used_memory_mb"],
        memory_mb=row["memory_mb"],
        code_version=row["code_version"],
    )


async def drop_host(host_id: str) -> DroppedHost:
    """Forget it and tell its trials. Raises `CliError` for one that lives, or that does not exist."""
    from store import hosts

    async with open_database() as db:
        is_dropped = await hosts.drop_host(db, host_id)
        if is_dropped is False:
            raise CliError(f"{host_id} lives: stop its worker first, or leave it", code="host_lives")
        lost = await hosts.lost_trials(db, host_id)
        # Of a host that was dropped before, the trials may still have to be told.
        if is_dropped is None and not lost:
            raise CliError(f"there is no host {host_id}: `evolve admin host list`", code="host_not_found")
        n_told = await _tell(db, host_id) if lost else 0
    return DroppedHost(n_trials=len(lost), n_told=n_told)


async def _tell(db: Database, host_id: str) -> int:
    """How many were told; without Temporal none is, and the reaper does it."""
    from activities.reap_workflows import tell_lost
    from store.hosts import lost_trials

    try:
        client = await connect()
    except CliError:
        return 0
    return sum([await tell_lost(client, row) for row in await lost_trials(db, host_id)])
