"""The relay, run as it is run in a pod: by `python -I -S`, between a port and a unix socket."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from activities.sandboxes import relay


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def relay_to(gateway_socket: Path) -> AsyncIterator[int]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", relay.__file__, gateway_socket, str(port), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    try:
        yield port
    finally:
        process.kill()
        await process.wait()


async def upper_case(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.read()).upper())
    await writer.drain()
    writer.close()


async def say(port: int, text: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_bytes_go_both_ways_and_the_end_of_each_is_passed_on(tmp_path: Path) -> None:
    text = b"payload " * 500_000
    async with await asyncio.start_unix_server(upper_case, tmp_path / "s"), relay_to(tmp_path / "s") as port:
        assert await say(port, text) == text.upper()


async def test_a_connection_is_held_while_the_gateway_is_away(tmp_path: Path) -> None:
    async with relay_to(tmp_path / "s") as port:
        waiting = [asyncio.create_task(say(port, b"held")) for _ in range(20)]
        done, _ = await asyncio.wait(waiting, timeout=0.5)
        assert not done
        async with await asyncio.start_unix_server(upper_case, tmp_path / "s"):
            assert await asyncio.gather(*waiting) == [b"HELD"] * 20


async def test_a_cut_of_the_gateway_is_a_cut_at_the_client(tmp_path: Path) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half an ans")
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(half, tmp_path / "s"), relay_to(tmp_path / "s") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b"half an ans"
        writer.close()


async def test_the_gateway_learns_that_a_client_left(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        left.set()
        writer.close()

    async with await asyncio.start_unix_server(watch, tmp_path / "s"), relay_to(tmp_path / "s") as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"request")
        await writer.drain()
        writer.transport.abort()
        await asyncio.wait_for(left.wait(), 5)


async def test_many_connections_at_once_are_all_answered(tmp_path: Path) -> None:
    async with await asyncio.start_unix_server(upper_case, tmp_path / "s"), relay_to(tmp_path / "s") as port:
        assert await asyncio.gather(*(say(port, b"x") for _ in range(600))) == [b"X"] * 600
