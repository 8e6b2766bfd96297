"""Hosts that hold boxes, and the boxes admitted to them: leases, authoritative and locked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Index, text
from sqlmodel import Field, col, select

from domain.errors import ProviderCreateFailure
from store.database import Database, Row, json_column, now, time_column


class Host(Row, table=True):
    """A lease of one worker host. It is dead only when the lease has expired for `AWAY_GRACE` and another
    live host serves the provider, or an operator has dropped it: then its row is gone.

    `providers` maps provider → {"ok": bool, "reason": str | null, "paused": str | null}; while it is
    paused, for want of disk, no trial starts with it there.
    """

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

    `name` is `BoxTag.name`; `state` is `reserved`, `live`, `ending` or `gone`. From `ending` on a box of
    that name is nobody's: whoever finds that it has made one destroys it.
    """

    __tablename__ = "box_leases"
    # What was ever leased stays as a row: who looks for taken room must not read all of it.
    __table_args__ = (Index("box_leases_taken", "host_id", postgresql_where=text("state <> 'gone'")),)
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


# Long enough that a busy or restarting worker keeps its host.
LEASE_SEC = 30.0
# So long after its lease has expired a host is dead, where another one that lives serves the provider.
AWAY_GRACE = timedelta(minutes=10)

_RENEW = """
INSERT INTO hosts (id, providers, default_provider, default_reason, queue, follow_queue, cpus, memory_mb,
                   code_version, lease_expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, now() + make_interval(secs => $10))
ON CONFLICT (id) DO UPDATE SET
  providers = excluded.providers, default_provider = excluded.default_provider,
  default_reason = excluded.default_reason, cpus = excluded.cpus, memory_mb = excluded.memory_mb,
  code_version = excluded.code_version, lease_expires_at = excluded.lease_expires_at
"""
# Those that serve the provider, the one with the most free memory first; live ones before all.
_HOSTS_OF = """
SELECT h.*, h.lease_expires_at > now() AS is_live,
       coalesce(sum(b.cpus), 0) AS used_cpus,
       coalesce(sum(b.memory_mb), 0) AS used_memory_mb
FROM hosts h
LEFT JOIN box_leases b ON b.host_id = h.id AND b.state <> 'gone'
WHERE (h.providers -> $1 ->> 'ok')::bool
GROUP BY h.id, h.providers, h.default_provider, h.default_reason, h.queue, h.follow_queue, h.cpus,
         h.memory_mb, h.code_version, h.lease_expires_at
ORDER BY is_live DESC, h.memory_mb - coalesce(sum(b.memory_mb), 0) DESC
"""
_LOCK_HOSTS = "SELECT FROM hosts WHERE (providers -> $1 ->> 'ok')::bool ORDER BY id FOR UPDATE"
_RESERVE = """
INSERT INTO box_leases
  (name, host_id, provider, trial_id, attempt_number, cpus, memory_mb, state, reserved_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, 'reserved', now())
ON CONFLICT (name) DO UPDATE SET host_id = excluded.host_id, state = 'reserved', gone_at = NULL
"""


@dataclass(frozen=True)
class Room:
    """What a box asks of a host: of any that serves the provider, or of `host_id` alone."""

    name: str
    provider: str
    trial_id: str
    attempt_number: int
    cpus: float
    memory_mb: int
    host_id: str | None = None


@dataclass(frozen=True)
class HostChoice:
    """A host that holds a lease for the box; or `host_id` empty and the reason why none has room."""

    host_id: str = ""
    queue: str = ""
    follow_queue: str = ""
    waiting_for: str | None = None


async def renew_host(db: Database, host: Host) -> None:
    """Say that this host lives, for `LEASE_SEC` from now by the database's clock."""
    pool = await db.pool()
    await pool.execute(
        _RENEW,
        host.id,
        host.providers,
        host.default_provider,
        host.default_reason,
        host.queue,
        host.follow_queue,
        host.cpus,
        host.memory_mb,
        host.code_version,
        LEASE_SEC,
    )


async def reserve_room(connection: Any, room: Room, cpu_overcommit: float) -> HostChoice:
    """Lease room for a box on a host, or say what it waits for. Asked again it answers the same lease.

    Must run in a transaction. Memory is never given twice; cpus are, `cpu_overcommit` times, since an
    agent mostly waits for a model.
    """
    held = await connection.fetchrow(
        "SELECT h.id, h.queue, h.follow_queue FROM box_leases b JOIN hosts h ON h.id = b.host_id"
        " WHERE b.name = $1 AND b.state <> 'gone'",
        room.name,
    )
    if held is not None:
        return HostChoice(held["id"], held["queue"], held["follow_queue"])
    # Locked by a statement of its own, so that the next one sees what earlier holders leased.
    await connection.execute(_LOCK_HOSTS, room.provider)
    found = await connection.fetch(_HOSTS_OF, room.provider)
    hosts = _of_use(found, room.host_id)
    if not hosts:
        return HostChoice(waiting_for=f"a worker host that serves {room.provider}")
    # A trial that has its host goes on there: only what begins is held back.
    open_hosts = [host for host in hosts if room.host_id or not _paused(host, room.provider)]
    if not open_hosts:
        return HostChoice(waiting_for=f"free disk on {hosts[0]['id']}: {_paused(hosts[0], room.provider)}")
    for host in open_hosts:
        has_memory = host["used_memory_mb"] + room.memory_mb <= host["memory_mb"]
        if has_memory and host["used_cpus"] + room.cpus <= host["cpus"] * cpu_overcommit:
            await connection.execute(
                _RESERVE,
                room.name,
                host["id"],
                room.provider,
                room.trial_id,
                room.attempt_number,
                room.cpus,
                room.memory_mb,
            )
            return HostChoice(host["id"], host["queue"], host["follow_queue"])
    if all(room.memory_mb > h["memory_mb"] or room.cpus > h["cpus"] * cpu_overcommit for h in hosts):
        raise ProviderCreateFailure(
            f"no host of {room.provider} has {room.memory_mb} MB of memory and {room.cpus:g} cpus at all"
        )
    return HostChoice(waiting_for=f"{room.memory_mb} MB and {room.cpus:g} cpus on {open_hosts[0]['id']}")


def _of_use(found: list[Any], host_id: str | None) -> list[Any]:
    """The one that is named; else those that live. Where none does, one that is away is waited for."""
    if host_id is not None:
        return [host for host in found if host["id"] == host_id]
    return [host for host in found if host["is_live"]] or found


def _paused(host: Any, provider: str) -> str | None:
    return host["providers"][provider].get("paused")


async def release_room(db: Database, name: str) -> None:
    """Give back room that was leased for a box which was never made."""
    pool = await db.pool()
    await pool.execute(
        "UPDATE box_leases SET state = 'gone', gone_at = now()"
        " WHERE name = $1 AND state = 'reserved' AND box_id IS NULL",
        name,
    )


async def leased_host(db: Database, name: str) -> Any:
    """Where the attempt that once leased room for this box has any: `provider`, and its host's `id`,
    `queue`, `follow_queue`; None when nowhere. A separate verifier's box follows the agent's."""
    pool = await db.pool()
    return await pool.fetchrow(
        "SELECT b.provider, h.id, h.queue, h.follow_queue FROM box_leases b JOIN hosts h ON h.id = b.host_id"
        " WHERE (b.trial_id, b.attempt_number) = (SELECT trial_id, attempt_number FROM box_leases"
        " WHERE name = $1) AND b.state <> 'gone' LIMIT 1",
        name,
    )


async def mark_live(db: Database, name: str, box_id: str) -> bool:
    """Note the provider's id of a leased box; False when the lease has ended and nobody will look for it."""
    pool = await db.pool()
    marked = await pool.fetchval(
        "UPDATE box_leases SET state = 'live', box_id = $2"
        " WHERE name = $1 AND state IN ('reserved', 'live') RETURNING name",
        name,
        box_id,
    )
    return marked is not None


async def mark_ending(db: Database, name: str) -> None:
    """Say that a box is about to be destroyed: its room is still taken, but it is nobody's any more."""
    pool = await db.pool()
    await pool.execute("UPDATE box_leases SET state = 'ending' WHERE name = $1 AND state <> 'gone'", name)


async def leased_boxes(db: Database, trial_id: str, attempt_number: int) -> list[Any]:
    """What an attempt has leased and not given back: `name`, and `box_id`, null until its box is known."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT name, box_id FROM box_leases WHERE trial_id = $1 AND attempt_number = $2 AND state <> 'gone'",
        trial_id,
        attempt_number,
    )


MARK_GONE = "UPDATE box_leases SET state = 'gone', gone_at = now() WHERE name = $1 AND state <> 'gone'"


async def mark_gone(db: Database, name: str) -> None:
    """Give a box's room back."""
    pool = await db.pool()
    await pool.execute(MARK_GONE, name)


async def live_hosts(db: Database) -> list[Any]:
    """Hosts whose lease is running: `id`, `queue`."""
    pool = await db.pool()
    return await pool.fetch("SELECT id, queue FROM hosts WHERE lease_expires_at > now() ORDER BY id")


async def away_trials(db: Database) -> list[Any]:
    """Trials under way on a host whose lease has expired: `trial_id`, `host_id`, `since`."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT DISTINCT b.trial_id, h.id AS host_id, h.lease_expires_at AS since"
        " FROM box_leases b JOIN hosts h ON h.id = b.host_id JOIN trials t ON t.id = b.trial_id"
        " WHERE b.state <> 'gone' AND t.finished_at IS NULL AND h.lease_expires_at < now()"
        " ORDER BY since, trial_id"
    )


_LOST = """
SELECT DISTINCT t.id AS trial_id, t.attempt_number, b.host_id, b.provider, h.lease_expires_at AS since
FROM trials t JOIN box_leases b ON b.trial_id = t.id AND b.attempt_number = t.attempt_number
LEFT JOIN hosts h ON h.id = b.host_id
WHERE t.finished_at IS NULL AND ($1::text IS NULL OR b.host_id = $1)
  AND (h.id IS NULL OR h.lease_expires_at < now() - $2::interval AND EXISTS (
    SELECT FROM hosts o WHERE o.lease_expires_at > now() AND (o.providers -> b.provider ->> 'ok')::bool))
ORDER BY b.host_id, t.id
"""


async def lost_trials(db: Database, host_id: str | None = None) -> list[Any]:
    """Trials under way on a dead host (the one that is named): `trial_id`, `attempt_number`, `host_id`,
    `provider`, and `since` when it is away, null for one that an operator dropped.

    Leases that are given back count too: a verifier that waits for room, and the close, are the host's.
    """
    pool = await db.pool()
    return await pool.fetch(_LOST, host_id, AWAY_GRACE)


_LIST_HOSTS = """
SELECT h.id, h.providers, h.cpus, h.memory_mb, h.code_version, h.lease_expires_at,
       h.lease_expires_at > now() AS is_live, count(b.name) AS n_boxes,
       coalesce(sum(b.memory_mb), 0)::int AS used_memory_mb
FROM hosts h LEFT JOIN box_leases b ON b.host_id = h.id AND b.state <> 'gone'
GROUP BY h.id ORDER BY h.id
"""
_DROP_LEASES = """
UPDATE box_leases b SET state = 'gone', gone_at = now() WHERE b.host_id = $1 AND b.state <> 'gone'
  AND NOT EXISTS (SELECT FROM trials t WHERE t.id = b.trial_id AND t.finished_at IS NULL)
"""


async def list_hosts(db: Database) -> list[Any]:
    """Every host: `id`, `providers`, `cpus`, `memory_mb`, `code_version`, `lease_expires_at`, `is_live`,
    `n_boxes`, `used_memory_mb`."""
    pool = await db.pool()
    return await pool.fetch(_LIST_HOSTS)


async def drop_host(db: Database, host_id: str) -> bool | None:
    """Forget a host that is away, for good: its trials are lost (`lost_trials`), and nothing waits for it.

    False when it lives, None when there is none of that name. Should it come back, it is a new one.
    """
    async with db.transaction() as connection:
        is_live = await connection.fetchval(
            "SELECT lease_expires_at > now() FROM hosts WHERE id = $1 FOR UPDATE", host_id
        )
        if is_live is None or is_live:
            return None if is_live is None else False
        await connection.execute("DELETE FROM hosts WHERE id = $1", host_id)
        await connection.execute(_DROP_LEASES, host_id)
    return True


async def find_builder(db: Database, providers: Sequence[str]) -> tuple[Host, str] | None:
    """A host, and the first of the providers that it serves; None when no host serves any.

    A host that lives comes before one that is away, then the earlier provider, then the newest lease.
    """
    query = select(Host).order_by(col(Host.lease_expires_at).desc())
    async with db.session() as session:
        hosts = list((await session.execute(query)).scalars().all())
    at = now()
    for is_live in (True, False):
        for provider in providers:
            for host in hosts:
                if (host.lease_expires_at > at) is is_live and host.providers.get(provider, {}).get("ok"):
                    return host, provider
    return None


async def newest_host(db: Database) -> Host | None:
    """The host that was heard of last, alive or not: what this installation runs on by default."""
    query = select(Host).order_by(col(Host.lease_expires_at).desc()).limit(1)
    async with db.session() as session:
        return (await session.execute(query)).scalars().first()
