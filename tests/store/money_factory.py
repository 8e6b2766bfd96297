"""Keys and calls for the tests of the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from domain.usage import CallUsage
from store.database import POOL_MAX, Database, now
from store.keys import GrantedModel, KeyPlan, mint_key
from store.server_secret import ServerSecret
from store.spend import CallEnd, NewCall

SECRET = ServerSecret("a secret of these tests, long enough")
MODEL = GrantedModel(name="opus", provider="anthropic", upstream_model="claude-opus-5-5")


def key_plan(**changes: Any) -> KeyPlan:
    """An agent's key with a cap of 1000 nano-dollars."""
    members: dict[str, Any] = {
        "role": "agent", "job_id": "job", "trial_id": f"trial-{uuid4().hex[:8]}", "attempt_number": 1,
        "owner_user_id": "ann", "org_id": "lab", "models": (MODEL,), "cap_nanos": 1000, "max_in_flight": 100,
        "expires_at": now() + timedelta(hours=1),
    }  # fmt: skip
    return KeyPlan(**{**members, **changes})


async def minted(db: Database, **changes: Any) -> KeyPlan:
    """A key that is in the ledger."""
    plan = key_plan(**changes)
    await mint_key(db, SECRET, plan)
    return plan


def new_call(plan: KeyPlan, hold_nanos: int, **changes: Any) -> NewCall:
    """A call of that key."""
    members: dict[str, Any] = {
        "call_id": str(uuid4()), "key_id": plan.key_id, "gateway_id": "gateway", "protocol": "anthropic",
        "model": MODEL.name, "provider": MODEL.provider, "upstream_model": MODEL.upstream_model,
        "hold_nanos": hold_nanos, "price_version": "book", "started_at": now(),
    }  # fmt: skip
    return NewCall(**{**members, **changes})


def measured(cost_nanos: int, **usage: int) -> CallEnd:
    """The end of a call whose usage the provider told."""
    return CallEnd(status="measured", ended_at=now(), usage=CallUsage(**usage), cost_nanos=cost_nanos)


def ended(status: Any, **changes: Any) -> CallEnd:
    """Any other end."""
    return CallEnd(status=status, ended_at=now(), **changes)


def month_ago() -> datetime:
    """A time in an earlier month."""
    return datetime.now(UTC).replace(day=1) - timedelta(days=3)


# Not pg_stat_activity: a transaction sees one snapshot of that.
_WAITING = "SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted"


async def at_once(db: Database, table: str, calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run them with as many as there are connections waiting at the same locked rows, then let them go."""
    async with db.transaction() as connection:
        await connection.execute(f"SELECT FROM {table} FOR UPDATE")
        tasks = [asyncio.ensure_future(call) for call in calls]
        while await connection.fetchval(_WAITING) < POOL_MAX - 1:  # noqa: ASYNC110 - other connections wait
            await asyncio.sleep(0.005)
    return await asyncio.gather(*tasks)
