"""The relay: a TCP port on a box's loopback that leads to the gateway's unix socket, and nowhere else.

Run as `python -I -S relay.py SOCKET [PORT]` inside a net pod, with nothing but the standard library.
It copies bytes and knows no protocol, so a cut stays a cut and never becomes an answer of its own.
While the gateway is away it holds new connections for `HOLD_SEC`; what was already talking is not
resumed, that is for the client. It prints `ready` once it listens.
"""

import asyncio
import sys

PORT = 8801
HOLD_SEC = 60.0
RETRY_SEC = 0.2
CHUNK_BYTES = 256 * 1024


async def connect(socket_path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The gateway, waited for up to `HOLD_SEC`; raises `OSError` after that."""
    clock = asyncio.get_running_loop().time
    give_up_at = clock() + HOLD_SEC
    while True:
        try:
            return await asyncio.open_unix_connection(socket_path, limit=CHUNK_BYTES)
        except OSError:
            if clock() >= give_up_at:
                raise
            await asyncio.sleep(RETRY_SEC)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until end of file, and pass the end of file on."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


async def bridge(socket_path: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One client, both ways; when either side breaks, both are cut at once."""
    open_sides = [writer]
    try:
        up_reader, up_writer = await connect(socket_path)
        open_sides.append(up_writer)
        async with asyncio.TaskGroup() as both:
            both.create_task(pump(reader, up_writer))
            both.create_task(pump(up_reader, writer))
        for side in open_sides:
            side.close()
    except (OSError, ExceptionGroup):
        for side in open_sides:
            side.transport.abort()


async def serve(socket_path: str, port: int) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await bridge(socket_path, reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", port, limit=CHUNK_BYTES, backlog=1024)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else PORT))
