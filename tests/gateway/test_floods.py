"""Agents that ask on and on in vain: bounded rows, bounded memory, and nobody else's trial is touched."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any

import pytest

from gateway import ledger as ledgers
from gateway import pacer as pacers
from gateway.denials import Denial
from gateway.recent import Recent
from store.attempt_spend import attempt_spend
from store.database import Database
from store.keys import KeyGrant
from tests.gateway.conftest import DOLLAR, Door, ended
from tests.gateway.fake_provider import Reply
from tests.waiting import eventually

MESSAGES: dict[str, Any] = {"model": "opus", "max_tokens": 1000, "messages": []}
# What such a call holds is a little under 0.04 dollars.
ONE_CALL = round(0.05 * DOLLAR)
WHOLE = b'{"usage":{"input_tokens":1,"output_tokens":1}}'


def of(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", "key": ""}


async def ask(door: Door, key: str) -> tuple[int, str | None]:
    status, _, answer = await door.post("/v1/messages", MESSAGES, **of(key))
    return status, answer.headers.get("x-evolve-reason")


async def test_calls_that_find_no_place_to_wait_come_again_and_are_not_refused_for_money(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "MAX_WAITING_OF_KEY", 2)
    key = await door.mint(cap_nanos=ONE_CALL)
    gate = asyncio.Event()
    door.provider.reply = Reply([WHOLE], gates={0: gate})
    first = asyncio.create_task(ask(door, key))
    await eventually(lambda: bool(door.provider.hits))
    waiting = [asyncio.create_task(ask(door, key)) for _ in range(2)]
    await eventually(lambda: door.gateway.ledger._n_waiting == 2)
    assert await ask(door, key) == (429, "in_flight")
    spend = await attempt_spend(door.db, door.keys[key].trial_id, 1, "agent")
    assert spend.last_refusal == "in_flight"
    # Nobody else waits for them.
    other = await door.mint()
    door.provider.reply = Reply([WHOLE])
    assert (await ask(door, other))[0] == 200
    gate.set()
    assert [(await call)[0] for call in (first, *waiting)] == [200] * 3
    assert door.gateway.ledger._waiting == {}


async def test_calls_that_wait_fill_no_memory_with_their_bodies(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "MAX_WAITING_BYTES", 150)
    key = await door.mint(cap_nanos=ONE_CALL)
    gate = asyncio.Event()
    door.provider.reply = Reply([WHOLE], gates={0: gate})
    first = asyncio.create_task(ask(door, key))
    await eventually(lambda: bool(door.provider.hits))
    waiting = [asyncio.create_task(ask(door, key)) for _ in range(2)]
    await eventually(lambda: door.gateway.ledger._n_waiting == 2)
    assert await ask(door, key) == (429, "in_flight")
    gate.set()
    assert [(await call)[0] for call in (first, *waiting)] == [200] * 3
    assert door.gateway.ledger._waiting_bytes == 0


async def test_a_flood_of_refusals_has_few_rows_and_all_are_counted(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacers, "FREE", 5)
    monkeypatch.setattr(pacers, "A_SEC", 0.5)
    monkeypatch.setattr(pacers, "MAX_WAITING", 1)
    monkeypatch.setattr(pacers, "TELL_SEC", 0.01)
    key = await door.mint(cap_nanos=1)
    waits: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(delay: float, result: object = None) -> None:
        if delay > 0.1:
            waits.append(delay)
            await asyncio.Event().wait()
        await real_sleep(delay)

    for _ in range(5):
        assert await ask(door, key) == (402, "own_cap")
    monkeypatch.setattr(pacers.asyncio, "sleep", sleep)
    delayed = asyncio.create_task(ask(door, key))
    while not waits:
        await real_sleep(0.01)
    assert await asyncio.gather(*(ask(door, key) for _ in range(40))) == [(402, "own_cap")] * 40
    while sum(told_count(row.adjustments) for row in await door.calls(key)) < 40:
        await real_sleep(0.01)
    rows = await door.calls(key)
    assert len([row for row in rows if not row.adjustments]) == 5
    assert {row.refusal for row in rows} == {"own_cap"}
    assert 0 < waits[0] <= pacers.MAX_DELAY_SEC
    delayed.cancel()
    # Another key goes on as if nothing were.
    door.provider.reply = Reply([WHOLE])
    assert (await ask(door, door.key))[0] == 200


def told_count(adjustments: tuple[str, ...]) -> int:
    return sum(int(told.split()[0]) for told in adjustments)


async def test_what_a_flood_leaves_untold_is_told_at_the_end(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacers, "FREE", 1)
    monkeypatch.setattr(pacers, "MAX_WAITING", 0)
    monkeypatch.setattr(pacers, "A_SEC", 0.001)
    key = await door.mint(cap_nanos=1)
    for _ in range(4):
        await ask(door, key)
    assert len(await door.calls(key)) == 1
    await door.gateway.ledger.close()
    [_, told] = await door.calls(key)
    assert (told.status, told.refusal, told_count(told.adjustments)) == ("refused", "own_cap", 3)


async def test_what_is_told_late_does_not_outrank_what_was_admitted_since(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacers, "FREE", 1)
    monkeypatch.setattr(pacers, "MAX_WAITING", 0)
    monkeypatch.setattr(pacers, "A_SEC", 1000.0)
    key = await door.mint(cap_nanos=1)
    await ask(door, key)
    pace = door.gateway.ledger.pacer._paces[door.keys[key].key_id]
    pace.left = -1e9
    await ask(door, key)
    pool = await door.db.pool()
    await pool.execute("UPDATE gateway_keys SET cap_nanos = $2 WHERE id = $1", door.keys[key].key_id, DOLLAR)
    pace.left = 1.0
    door.provider.reply = Reply([WHOLE])
    assert (await ask(door, key))[0] == 200
    await door.gateway.ledger.close()
    spend = await attempt_spend(door.db, door.keys[key].trial_id, 1, "agent")
    assert (spend.refusals, spend.n_calls_after_refusal) == ({"own_cap": 2}, 1)


def test_the_pacer_remembers_no_more_keys_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacers, "MAX_KEYS", 50)

    async def tell(_untold: pacers.Untold) -> None: ...

    pacer = pacers.RefusalPacer(tell)
    for number in range(500):
        grant = KeyGrant.model_construct(key_id=str(number))
        pacer.note(grant, Denial("own_cap", "x"))
    assert len(pacer._paces) <= 50


async def growth_of(door: Door, n_calls: int, key: str) -> int:
    """Bytes that are still held after so many calls and were not before; warmed up first."""

    async def run(count: int) -> None:
        for _ in range(count // 50):
            await asyncio.gather(*(ask(door, key) for _ in range(50)))
        gc.collect()

    tracemalloc.start()
    try:
        await run(n_calls // 4)
        before = tracemalloc.get_traced_memory()[0]
        await run(n_calls)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_known", [True, False], ids=["at the reservation", "at the key"])
async def test_memory_is_flat_while_postgres_is_away_and_calls_are_held(
    door: Door, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    monkeypatch.setattr(ledgers, "MAX_DISOWNED", 100)
    ledger = door.gateway.ledger
    ledger._disowned = ledgers.deque(maxlen=100)
    gate = asyncio.Event()
    door.provider.reply = Reply([WHOLE], gates={0: gate})
    held = [asyncio.create_task(ask(door, door.key)) for _ in range(20)]
    await eventually(lambda: len(door.provider.hits) == 20)
    if is_known:  # as it is for the first seconds of an outage
        ledger._grants = Recent(3600.0)
        await ledger.find_for_call(door.key)
        door.gateway.catalog._books._age_sec = door.gateway.catalog._provider_keys._age_sec = 3600.0
    else:
        ledger._grants = Recent(-1.0)
    ledger._db = Database("postgresql://nobody@127.0.0.1:9/none")
    assert await ask(door, door.key) == (503, "unavailable")
    assert await growth_of(door, 200, door.key) < 100_000
    assert len(ledger._settling) <= 1
    ledger._db = door.db
    gate.set()
    assert [(await call)[0] for call in held] == [200] * 20
    rows = await ended(door)
    assert [row.status for row in rows] == ["measured"] * 20


async def test_memory_is_flat_while_calls_are_refused(door: Door) -> None:
    key = await door.mint(cap_nanos=1)
    door.gateway.ledger.pacer.note(await door.gateway.ledger.find(key), _own_cap())
    pace = door.gateway.ledger.pacer._paces[door.keys[key].key_id]
    pace.left, pace.n_waiting = -1e9, pacers.MAX_WAITING
    assert await growth_of(door, 200, key) < 100_000
    pace.n_waiting = 0


def _own_cap() -> Denial:
    return Denial("own_cap", "this call could spend more than is left of the trial's cap")
