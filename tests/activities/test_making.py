"""A create is not broken off: what nobody wants any more when it is there goes again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import pytest_asyncio

from activities.making import TrialOver, make_leased_box
from activities.sandboxes.base import Box, BoxSpec, BoxTag, ImageRef
from store.database import Database, now
from store.hosts import Host, Room, leased_boxes, mark_gone, renew_host, reserve_room
from tests.providers.fast import FastProvider
from tests.waiting import eventually, until

TAG = BoxTag("installation", "job", "trial", attempt_number=1, step=0, role="agent", fence=1)


class Provider(FastProvider):
    """Tells how many creates came to their end."""

    n_made = 0

    async def create(self, spec: BoxSpec) -> Box:
        box = await super().create(spec)
        self.n_made += 1
        return box


class Lease:
    """The leased box of one attempt, whose create is held at the provider."""

    def __init__(self, db: Database, provider: Provider) -> None:
        self.db = db
        self.provider = provider

    async def asked(self, barrier: str) -> asyncio.Task[Box]:
        """The box is asked for, and held before it is made (`create`) or after (`boot`)."""
        self.provider.barriers.hold(barrier)
        spec = BoxSpec(TAG, ImageRef(id="image", handle=""), "no-network", lifetime_sec=60)
        making = asyncio.create_task(make_leased_box(self.db, self.provider, spec))
        await eventually(lambda: self.provider.barriers.reached(barrier))
        return making

    async def cancelled(self, barrier: str) -> None:
        """The same, and whoever asked is cancelled."""
        making = await self.asked(barrier)
        making.cancel()
        with pytest.raises(asyncio.CancelledError):
            await making

    def boxes(self) -> list[str]:
        return [path.name for path in self.provider.boxes.iterdir()]

    async def is_known(self) -> bool:
        leased = await leased_boxes(self.db, TAG.trial_id, TAG.attempt_number)
        return [lease["box_id"] for lease in leased] == [TAG.name]


@pytest_asyncio.fixture
async def lease(db: Database, tmp_path: Path) -> Lease:
    host = Host(
        id="here", providers={"local": {"ok": True}}, default_provider="local", default_reason="", queue="q",
        follow_queue="f", cpus=1, memory_mb=1000, code_version="1", lease_expires_at=now(),
    )  # fmt: skip
    await renew_host(db, host)
    async with db.transaction() as connection:
        room = Room(TAG.name, "local", TAG.trial_id, TAG.attempt_number, cpus=1, memory_mb=1000)
        await reserve_room(connection, room, 1.0)
    return Lease(db, Provider(tmp_path))


@pytest.mark.parametrize("barrier", ["create", "boot"])
async def test_a_create_that_ends_after_its_cancel_and_the_close_leaves_no_box(
    lease: Lease, barrier: str
) -> None:
    await lease.cancelled(barrier)
    await mark_gone(lease.db, TAG.name)
    lease.provider.barriers.release(barrier)
    await eventually(lambda: lease.provider.n_made == 1 and lease.boxes() == [])


async def test_a_create_that_ends_after_its_cancel_is_found_by_the_close(lease: Lease) -> None:
    await lease.cancelled("create")
    lease.provider.barriers.release("create")
    await until(lease.is_known)
    assert lease.boxes() == [TAG.name]


async def test_a_create_that_was_overtaken_says_so(lease: Lease) -> None:
    making = await lease.asked("create")
    await mark_gone(lease.db, TAG.name)
    lease.provider.barriers.release("create")
    with pytest.raises(TrialOver):
        await making
    assert lease.boxes() == []
