"""Every call has one row, and what is not known is booked at its hold."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import aiohttp
import pytest

from domain.usage import CallUsage
from gateway.idle_watch import IdleWatch
from gateway.meter import Meter
from store.attempt_spend import CallRow
from store.database import Database, now
from store.keys import revoke_keys
from store.spend import CallEnd, NewCall
from tests.gateway.conftest import DOLLAR, Door, ended
from tests.gateway.fake_provider import CHAT_STREAM, MESSAGES_STREAM, RESPONSES_STREAM, SSE, Reply, events
from tests.waiting import eventually

MESSAGES = {"model": "opus", "max_tokens": 1000, "stream": True, "messages": []}
CHAT = {"model": "sol", "max_tokens": 1000, "stream": True, "stream_options": {"include_usage": True}}


async def settled_as(door: Door, key: str, status: str) -> None:
    """Return once one of the key's calls has ended so."""
    while True:
        if status in [call.status for call in await door.calls(key)]:
            return
        await asyncio.sleep(0.01)


async def rows_of(door: Door, key: str, count: int) -> list[CallRow]:
    """The rows once there are so many."""
    while True:
        rows = await door.calls(key)
        if len(rows) >= count:
            return rows
        await asyncio.sleep(0.01)


async def test_a_cut_upstream_is_booked_at_its_hold_and_looks_cut(door: Door) -> None:
    door.provider.reply = Reply(MESSAGES_STREAM[:3], headers=SSE, is_cut=True)
    with pytest.raises(aiohttp.ClientPayloadError):
        await door.post("/v1/messages", MESSAGES)
    [call] = await ended(door)
    assert (call.status, call.is_upstream_cut, call.is_client_gone) == ("held", True, False)
    assert call.cost_nanos == call.hold_nanos
    assert call.usage is None
    assert len(door.provider.hits) == 1


async def test_a_cut_after_the_usage_is_measured(door: Door) -> None:
    door.provider.reply = Reply(MESSAGES_STREAM[:4], headers=SSE, is_cut=True)
    with pytest.raises(aiohttp.ClientPayloadError):
        await door.post("/v1/messages", MESSAGES)
    [call] = await ended(door)
    assert (call.status, call.is_upstream_cut) == ("measured", True)


async def test_usage_so_far_of_a_stream_that_is_cut_does_not_count(door: Door) -> None:
    so_far = {"choices": [{"delta": {"content": "x"}}], "usage": {"prompt_tokens": 5, "completion_tokens": 1}}
    door.provider.reply = Reply(events(so_far, so_far), headers=SSE, is_cut=True)
    with pytest.raises(aiohttp.ClientPayloadError):
        await door.post("/v1/chat/completions", CHAT)
    assert (await ended(door))[0].status == "held"


async def test_a_client_that_leaves_is_billed_what_the_provider_says_in_the_end(door: Door) -> None:
    gate = asyncio.Event()
    door.provider.reply = Reply(RESPONSES_STREAM, headers=SSE, gates={2: gate})
    body = {"model": "sol", "max_output_tokens": 1000, "stream": True, "input": []}
    auth = {"authorization": f"Bearer {door.key}"}
    answer = await door.client.post(door.url + "/v1/responses", json=body, headers=auth)
    await answer.content.readany()
    answer.close()
    gate.set()
    [call] = await ended(door)
    assert call.usage == CallUsage(
        input_tokens=130, cached_input_tokens=20, output_tokens=50, reasoning_tokens=30
    )
    assert door.provider.n_sent == len(RESPONSES_STREAM)


async def test_an_error_within_a_stream_is_booked_at_its_hold(door: Door) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "too much"}}
    chunks = [*MESSAGES_STREAM[:3], *events(error, is_named=True)]
    door.provider.reply = Reply(chunks, headers=SSE)
    status, received, _ = await door.post("/v1/messages", MESSAGES)
    assert (status, received) == (200, b"".join(chunks))
    [call] = await ended(door)
    assert (call.status, call.error_kind, call.is_upstream_cut) == ("held", "overloaded_error", False)


@pytest.mark.parametrize(
    ("path", "body", "chunks", "headers"),
    [
        ("/v1/chat/completions", CHAT, CHAT_STREAM[:2], SSE),
        ("/v1/messages", {**MESSAGES, "stream": False}, [b'{"content":[]}'], {}),
        ("/v1/messages", {**MESSAGES, "stream": False}, [b"<html>"], {}),
        ("/v1/messages", {**MESSAGES, "stream": False}, [b'{"usage":{"input_tokens":-5}}'], {}),
        (
            "/v1/messages",
            {**MESSAGES, "stream": False},
            [b'{"usage":{"input_tokens":3000000000,"output_tokens":1}}'],
            {},
        ),
        (
            "/v1/messages",
            {**MESSAGES, "stream": False},
            [b'{"usage":{"input_tokens":1,"output_tokens":1' + b"0" * 30 + b"}}"],
            {},
        ),
    ],
)
async def test_an_answer_without_a_usage_is_booked_at_its_hold(
    door: Door, path: str, body: dict[str, object], chunks: list[bytes], headers: dict[str, str]
) -> None:
    door.provider.reply = Reply(chunks, headers=headers)
    assert (await door.post(path, body))[0] == 200
    [call] = await ended(door)
    assert (call.status, call.error_kind) == ("held", "usage_missing")


@pytest.mark.parametrize("cost", ["-1", "NaN", "Infinity", "1e300", "1" + "0" * 400, "true", '"3"'])
def test_a_reseller_s_figure_that_is_none_is_not_taken(cost: str) -> None:
    meter = Meter("chat")
    meter.feed(f'{{"usage":{{"prompt_tokens":1,"completion_tokens":1,"cost":{cost}}}}}'.encode())
    assert meter.usage(is_cut=False) is not None
    assert meter.reported_usd is None


@pytest.mark.parametrize("word", [r"a\u0000b", r"\ud800"])
async def test_a_provider_s_word_that_no_row_can_hold_is_an_error_all_the_same(door: Door, word: str) -> None:
    error = f'data: {{"type":"error","error":{{"type":"{word}"}}}}\n\n'.encode()
    door.provider.reply = Reply([*MESSAGES_STREAM[:3], error], headers=SSE)
    await door.post("/v1/messages", MESSAGES)
    [call] = await ended(door)
    assert (call.status, call.error_kind) == ("held", "error")


async def test_an_end_that_cannot_be_written_is_booked_at_the_hold(door: Door) -> None:
    assert door.plan is not None
    row = NewCall(
        call_id="another", key_id=door.plan.key_id, gateway_id="gateway-1",
        protocol="messages", model="opus", provider="anthropic", upstream_model="x", hold_nanos=500,
        price_version="v", started_at=now(),
    )  # fmt: skip
    await door.gateway.ledger.reserve(row)
    unwritable = CallEnd(status="failed", ended_at=now(), error_kind="a\0b")
    await door.gateway.ledger.settle(row, unwritable)
    last = (await ended(door))[-1]
    assert (last.status, last.cost_nanos, last.error_kind) == ("held", 500, "end_unwritable")


@pytest.mark.parametrize("status", [400, 404, 429, 500, 529])
async def test_a_provider_s_error_passes_untouched_is_asked_once_and_costs_nothing(
    door: Door, status: int
) -> None:
    body = b'{"type":"error","error":{"type":"x","message":"prompt is too long"}}'
    headers = {"retry-after": "7", "x-should-retry": "true", "content-type": "application/json"}
    door.provider.reply = Reply([body], status=status, headers=headers)
    received_status, received, answer = await door.post("/v1/messages", MESSAGES)
    assert (received_status, received) == (status, body)
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["x-should-retry"] == "true"
    [call] = await ended(door)
    assert (call.status, call.cost_nanos, call.http_status) == ("refused_upstream", 0, status)
    assert len(door.provider.hits) == 1


async def test_a_provider_that_cannot_be_reached_costs_nothing(door: Door) -> None:
    upstream = door.gateway.catalog.upstreams["anthropic"]
    object.__setattr__(upstream, "base_url", "http://127.0.0.1:9")
    status, received, _ = await door.post("/v1/messages", MESSAGES)
    assert status == 502
    assert b"api_error" in received
    [call] = await ended(door)
    assert (call.status, call.cost_nanos, call.error_kind) == ("failed", 0, "connect")


async def test_sixty_four_calls_at_once_never_exceed_the_cap(door: Door) -> None:
    # The prompt's bound is 2,000 tokens and the body's bytes at $8 a million; 1,000 tokens come out at $20.
    hold = 0.038 * DOLLAR
    key = await door.mint(cap_nanos=round(5 * hold), max_in_flight=1000)
    door.provider.reply = Reply([b'{"usage":{"input_tokens":4000,"output_tokens":900}}'])

    async def call() -> int:
        headers = {"authorization": f"Bearer {key}", "key": ""}
        while True:  # as harnesses do that find no place to wait in
            status, _, _ = await door.post("/v1/messages", {**MESSAGES, "stream": False}, **headers)
            if status != 429:
                return status

    statuses = await asyncio.gather(*(call() for _ in range(64)))
    rows = await ended(door, key)
    spent = sum(row.cost_nanos or 0 for row in rows)
    assert set(statuses) == {200, 402}
    assert statuses.count(200) == len(door.provider.hits) == len([r for r in rows if r.status == "measured"])
    # Calls wait for those that hold the cap, so what is left at the end is less than one hold.
    assert 5 * hold - hold * 1.1 < spent <= 5 * hold


async def test_a_call_that_only_has_to_wait_for_another_is_not_refused(door: Door) -> None:
    key = await door.mint(cap_nanos=round(0.05 * DOLLAR), max_in_flight=10)
    gate = asyncio.Event()
    whole = Reply([b'{"usage":', b'{"input_tokens":1,"output_tokens":1}}'], gates={1: gate})
    door.provider.reply = whole
    headers = {"authorization": f"Bearer {key}", "key": ""}
    body = {**MESSAGES, "stream": False}
    first = asyncio.create_task(door.post("/v1/messages", body, **headers))
    await eventually(lambda: bool(door.provider.hits))
    second = asyncio.create_task(door.post("/v1/messages", body, **headers))
    await rows_of(door, key, 2)
    assert len(door.provider.hits) == 1
    gate.set()
    assert [(await first)[0], (await second)[0]] == [200, 200]
    assert [call.status for call in await ended(door, key)] == ["measured", "measured"]


async def test_more_calls_than_may_be_under_way_are_told_to_come_again(door: Door) -> None:
    key = await door.mint(max_in_flight=1)
    gate = asyncio.Event()
    door.provider.reply = Reply([b'{"usage":{"input_tokens":1,"output_tokens":1}}'], gates={0: gate})
    headers = {"authorization": f"Bearer {key}", "key": ""}
    first = asyncio.create_task(door.post("/v1/messages", MESSAGES, **headers))
    await eventually(lambda: bool(door.provider.hits))
    status, _, answer = await door.post("/v1/messages", MESSAGES, **headers)
    assert (status, answer.headers["retry-after"]) == (429, "1")
    assert answer.headers["x-evolve-reason"] == "in_flight"
    gate.set()
    await first


async def test_calls_that_are_under_way_at_a_stop_are_booked(door: Door) -> None:
    gate = asyncio.Event()
    door.provider.reply = Reply(MESSAGES_STREAM, headers=SSE, gates={2: gate})
    auth = {"authorization": f"Bearer {door.key}"}
    answer = await door.client.post(door.url + "/v1/messages", json=MESSAGES, headers=auth)
    await answer.content.readany()
    handlers = [task for task in asyncio.all_tasks() if "RequestHandler.start" in repr(task.get_coro())]
    for handler in handlers:
        handler.cancel()
    [call] = await ended(door)
    assert (call.status, call.error_kind, call.is_upstream_cut) == ("held", "gateway_stopped", True)
    gate.set()
    with suppress(aiohttp.ClientError):
        await answer.read()


async def test_what_ends_while_the_ledger_is_away_is_written_when_it_is_back(door: Door) -> None:
    gate = asyncio.Event()
    door.provider.reply = Reply(MESSAGES_STREAM, headers=SSE, gates={2: gate})
    asked = asyncio.create_task(door.post("/v1/messages", MESSAGES))
    await eventually(lambda: door.provider.n_sent == 2)
    ledger = door.gateway.ledger
    ledger._db = Database("postgresql://nobody@127.0.0.1:9/none")
    gate.set()
    await eventually(lambda: bool(ledger._settling))
    assert [call.status for call in await door.calls()] == ["open"]
    ledger._db = door.db
    assert (await asked)[0] == 200
    assert [call.status for call in await ended(door)] == ["measured"]


async def test_a_key_that_was_just_used_is_dead_as_soon_as_it_is_revoked(door: Door) -> None:
    door.provider.reply = Reply(MESSAGES_STREAM, headers=SSE)
    assert (await door.post("/v1/messages", MESSAGES))[0] == 200
    assert door.plan is not None
    await revoke_keys(door.db, door.plan.trial_id, 1)
    assert (await door.post("/v1/messages", MESSAGES))[0] == 401
    assert len(door.provider.hits) == 1


async def test_an_upstream_that_is_silent_for_too_long_is_given_up() -> None:
    given_up = asyncio.Event()
    with IdleWatch(0.05, given_up.set) as watch:
        watch.touch()
        await given_up.wait()
        assert watch.is_expired


async def test_a_client_that_left_while_it_waited_for_its_hold_is_not_asked_for(door: Door) -> None:
    key = await door.mint(cap_nanos=round(0.05 * DOLLAR), max_in_flight=10)
    gate = asyncio.Event()
    door.provider.reply = Reply([b'{"usage":{"input_tokens":1,"output_tokens":1}}'], gates={0: gate})
    headers = {"authorization": f"Bearer {key}", "key": ""}
    body = {**MESSAGES, "stream": False}
    first = asyncio.create_task(door.post("/v1/messages", body, **headers))
    await eventually(lambda: bool(door.provider.hits))
    second = asyncio.create_task(door.post("/v1/messages", body, **headers))
    await rows_of(door, key, 2)
    second.cancel()
    with suppress(asyncio.CancelledError):
        await second
    gate.set()
    assert (await first)[0] == 200
    await settled_as(door, key, "failed")
    assert [(call.status, call.error_kind) for call in await door.calls(key)] == [
        ("measured", None),
        ("failed", "client_gone"),
    ]
    assert len(door.provider.hits) == 1
