"""Whether boxes of a provider are being made: what dispatch asks, and its breaker's workflow writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlmodel import Field

from domain.breaker import PATIENCE, Breaker, BreakerState
from domain.errors import ProviderCreateFailure
from store.database import Database, Row, now, time_column


class ProviderHealth(Row, table=True):
    """A lease: a provider's breaker as its workflow last wrote it; no row is a closed one.

    `probe_trial_id` is the one trial that was let through in `half_open`, claimed under the row's lock.
    """

    __tablename__ = "provider_health"
    provider: str = Field(primary_key=True)
    state: str
    since: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    outage_since: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    is_held: bool = False
    reason: str | None = None
    probe_trial_id: str | None = None


@dataclass(frozen=True)
class Dispatch:
    """Whether a trial may ask the provider for a box now. `is_probe`: as the one that is let through."""

    waiting_for: str | None = None
    is_probe: bool = False


_FREE = Dispatch()
_WRITE = """
INSERT INTO provider_health (provider, state, since, outage_since, is_held, reason)
VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (provider) DO UPDATE SET state = excluded.state, since = excluded.since,
  outage_since = excluded.outage_since, is_held = excluded.is_held, reason = excluded.reason,
  probe_trial_id = NULL
WHERE (provider_health.state, provider_health.since, provider_health.is_held)
  IS DISTINCT FROM (excluded.state, excluded.since, excluded.is_held)
"""
_GOOD_CREATES = """
SELECT count(*) FROM box_leases WHERE provider = $1 AND reserved_at > $2 AND box_id IS NOT NULL
"""


async def ask_to_dispatch(connection: Any, provider: str, trial_id: str) -> Dispatch:
    """Whether the trial may go on to be placed; a probe is not claimed yet. One read while all is well.

    Must run in a transaction. Raises `ProviderCreateFailure` when the provider has failed for so long that
    waiting for it has no end in sight.
    """
    state = await connection.fetchval("SELECT state FROM provider_health WHERE provider = $1", provider)
    if state is None or state == BreakerState.CLOSED:
        return _FREE
    row = await connection.fetchrow(
        "SELECT * FROM provider_health WHERE provider = $1 AND state <> 'closed' FOR UPDATE", provider
    )
    if row is None:
        return _FREE
    if row["state"] == BreakerState.HALF_OPEN and row["probe_trial_id"] in (None, trial_id):
        return Dispatch(is_probe=True)
    why = f"{provider}: no boxes are made since {row['outage_since']:%H:%M} UTC ({row['reason']})"
    if not row["is_held"] and now() > row["outage_since"] + PATIENCE:
        raise ProviderCreateFailure(why)
    return Dispatch(waiting_for=why)


async def claim_probe(connection: Any, provider: str, trial_id: str) -> None:
    """The trial that `ask_to_dispatch` let through has been placed; in the same transaction."""
    await connection.execute(
        "UPDATE provider_health SET probe_trial_id = $2 WHERE provider = $1", provider, trial_id
    )


async def release_probe(db: Database, provider: str, trial_id: str) -> None:
    """The trial's claim, if it holds it: the next to ask is the probe."""
    pool = await db.pool()
    await pool.execute(
        "UPDATE provider_health SET probe_trial_id = NULL WHERE provider = $1 AND probe_trial_id = $2",
        provider,
        trial_id,
    )


async def write_health(db: Database, provider: str, breaker: Breaker) -> None:
    """The breaker's state for dispatch to read; a new state or probe frees the claim of the last one."""
    pool = await db.pool()
    await pool.execute(
        _WRITE,
        provider,
        breaker.state.value,
        breaker.since,
        breaker.outage_since,
        breaker.is_held,
        breaker.reason,
    )


async def count_good_creates(db: Database, provider: str, since: datetime) -> int:
    """Boxes that were asked for since then and made."""
    pool = await db.pool()
    return int(await pool.fetchval(_GOOD_CREATES, provider, since))


async def list_health(db: Database) -> list[Any]:
    """Every provider that ever failed, by name."""
    pool = await db.pool()
    return await pool.fetch("SELECT * FROM provider_health ORDER BY provider")
