"""Room on a host, given from an agent's box to its verifier's."""

from __future__ import annotations

import pytest

from domain.errors import ProviderCreateFailure
from store.database import Database, now
from store.hosts import Host, Room, exchange_room, leased_boxes, leased_host, renew_host, reserve_room


@pytest.fixture
async def host(db: Database) -> str:
    """One that has room for two boxes of 1000 MB."""
    for name, memory in (("here", 2000), ("elsewhere", 9000)):
        await renew_host(
            db,
            Host(
                id=name, providers={"docker": {"ok": True}}, default_provider="docker", default_reason="",
                queue=name, follow_queue=name, cpus=8, memory_mb=memory, code_version="1",
                lease_expires_at=now(),
            ),
        )  # fmt: skip
    return "here"


def room(name: str, memory_mb: int = 1000, host_id: str = "here") -> Room:
    trial_id, _, _ = name.partition("-")
    return Room(name, "docker", trial_id, 1, cpus=1, memory_mb=memory_mb, host_id=host_id)


async def reserve(db: Database, wanted: Room) -> bool:
    async with db.transaction() as connection:
        return (await reserve_room(connection, wanted, 1)).waiting_for is None


async def test_a_full_host_still_lets_each_trial_go_on_to_its_verifier(db: Database, host: str) -> None:
    assert await reserve(db, room("a-agent"))
    assert await reserve(db, room("b-agent"))
    assert not await reserve(db, room("c-agent"))
    for trial in ("a", "b"):
        choice = await exchange_room(db, f"{trial}-agent", room(f"{trial}-verifier"), 1)
        assert choice.host_id == host
    assert not await reserve(db, room("c-agent"))


async def test_a_larger_verifier_waits_without_holding_anything(db: Database, host: str) -> None:
    await reserve(db, room("a-agent"))
    await reserve(db, room("b-agent"))
    wanted = room("a-verifier", memory_mb=1500)
    assert (await exchange_room(db, "a-agent", wanted, 1)).waiting_for is not None
    assert await leased_boxes(db, "a", 1) == []
    await exchange_room(db, "b-agent", room("b-verifier", memory_mb=500), 1)
    assert (await exchange_room(db, "a-agent", wanted, 1)).host_id == host
    assert (await exchange_room(db, "a-agent", wanted, 1)).host_id == host


async def test_it_stays_on_its_host_and_what_never_fits_there_is_refused(db: Database, host: str) -> None:
    await reserve(db, room("a-agent"))
    with pytest.raises(ProviderCreateFailure, match="3000 MB"):
        await exchange_room(db, "a-agent", room("a-verifier", memory_mb=3000), 1)


async def test_an_attempt_is_found_by_whichever_box_it_has(db: Database, host: str) -> None:
    await reserve(db, room("a-agent"))
    assert (await leased_host(db, "a-agent"))["id"] == host
    await exchange_room(db, "a-agent", room("a-verifier"), 1)
    assert (await leased_host(db, "a-agent"))["id"] == host
    assert [row["name"] for row in await leased_boxes(db, "a", 1)] == ["a-verifier"]
