"""Requests that are made to hurt: no other trial waits for them, and none costs more than it holds."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import pytest
from multidict import CIMultiDict

from store.keys import GrantedModel
from tests.gateway.conftest import Door
from tests.gateway.fake_provider import Reply

MESSAGES = {"model": "opus", "max_tokens": 1000, "messages": []}
CHAT = {"model": "sol", "max_tokens": 1000, "messages": []}


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"opus","x":[' + b"1," * 5_000_000 + b"1]}",
        b'{"model":"opus","x":[' + b"{}," * 300_000 + b"{}]}",
        b'{"model":"opus",' + b",".join(b'"%d":1' % n for n in range(2_000)) + b"}",
    ],
    ids=["values", "objects", "members"],
)
async def test_a_body_that_would_keep_all_others_waiting_is_refused_at_once(door: Door, body: bytes) -> None:
    status, received, _ = await door.post("/v1/messages", body)
    assert (status, "too many" in json.loads(received)["error"]["message"]) == (400, True)


async def test_bodies_that_never_come_take_no_place_of_another_key(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.bodies.MAX_READING", 1)
    door.provider.reply = Reply([b"{}"])
    other = await door.mint()
    slow, written = await open_call(door, door.key, 1000)
    _, waiting = await open_call(door, door.key, 1000)
    status, _, _ = await door.post("/v1/messages", MESSAGES, key="", authorization=f"Bearer {other}")
    assert status == 200
    written.write(b"x" * 1000)
    assert (await slow.readline()).startswith(b"HTTP/1.1 400")
    for writer in (written, waiting):
        writer.close()


async def open_call(door: Door, key: str, n_bytes: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A call whose body of so many bytes has not come yet."""
    address = urlsplit(door.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
        f"content-length: {n_bytes}\r\n\r\n".encode()
    )
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize(
    ("header", "status"),
    [(b"content-encoding: gzip", b"400"), (b"x-api-key: evk-\xff\xfe", b"401")],
)
async def test_a_request_that_cannot_be_read_is_refused_natively(
    door: Door, header: bytes, status: bytes
) -> None:
    address = urlsplit(door.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(
        b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + door.key.encode() + b"\r\n"
        b"content-length: 2\r\nconnection: close\r\n" + header + b"\r\n\r\n{}"
    )
    received = await reader.read()
    assert received.split(b" ")[1] == status
    assert json.loads(received.partition(b"\r\n\r\n")[2])["type"] == "error"
    writer.close()


async def test_a_body_goes_up_as_the_json_that_it_was_read_as(door: Door) -> None:
    door.provider.reply = Reply([b"{}"])
    named = {"content-type": "application/json; charset=utf-16"}
    assert (await door.post("/v1/messages", MESSAGES, **named))[0] == 200
    assert door.provider.hits[0].headers["content-type"] == "application/json"


async def test_a_wider_window_asked_for_in_a_second_header_is_held_too(door: Door) -> None:
    long = {**MESSAGES, "messages": [{"role": "user", "content": "x" * 3_000_000}]}
    door.provider.reply = Reply([b"{}"])
    holds: list[int] = []
    for betas in (["context-1m-2025-08-07"], ["other", "context-1m-2025-08-07"]):
        headers = CIMultiDict([("authorization", f"Bearer {door.key}")])
        headers.extend([("anthropic-beta", beta) for beta in betas])
        await door.client.post(door.url + "/v1/messages", json=long, headers=headers)
        holds.append((await door.calls())[-1].hold_nanos)
    assert holds[0] == holds[1]


async def test_an_output_limit_beyond_all_money_is_refused(door: Door) -> None:
    unbounded = GrantedModel(name="m", provider="openai", upstream_model="gpt-5.5-cyber")
    key = await door.mint(models=(unbounded,))
    body = {**CHAT, "model": "m", "max_tokens": 10**30}
    assert (await door.post("/v1/chat/completions", body, key="", authorization=f"Bearer {key}"))[0] == 400
