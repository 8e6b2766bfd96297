"""A TCP proxy that can cut what passes through it, as a flaky network does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CutProxy:
    """Forwards 127.0.0.1:`port` to another local port; `cut()` resets every open connection."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    def cut(self) -> int:
        """Reset what is open; returns how many connections were."""
        writers = list(self._open)
        for writer in writers:
            writer.transport.abort()
        return len(writers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, upstream_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._open |= {writer}
        try:
            await asyncio.gather(pump(reader, upstream_writer), pump(upstream, writer))
        finally:
            self._open -= {writer}
            writer.close()
            upstream_writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until an end or a reset."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        writer.transport.abort()


@asynccontextmanager
async def cut_proxy(target_port: int) -> AsyncIterator[CutProxy]:
    """A running proxy."""
    proxy = CutProxy(target_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
