"""Listeners of this host that no box may reach: every address, TCP and UDP, IPv6, an abstract socket."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

from activities.sandboxes.firewall import host_addresses
from tests.activities.box_conformance import Target

METADATA = Target("metadata address", "AF_INET", "SOCK_STREAM", ["169.254.169.254", 80])
ANSWER_SEC = 2


@asynccontextmanager
async def host_listeners(loopback_in_a_box: Sequence[str] = ()) -> AsyncIterator[list[Target]]:
    """All of them, each proved to answer this host. `loopback_in_a_box`: a box's names for our 127.0.0.1."""
    async with AsyncExitStack() as stack:
        tcp, tcp6, abstract = await _listen(stack)
        # One a address: what is bound to all of them may answer by another than it was asked by.
        udp = {each: await _echo(stack, each) for each in ["127.0.0.1", *host_addresses()]}
        here = [
            *(Target(f"tcp {each}", "AF_INET", "SOCK_STREAM", [each, tcp]) for each in udp),
            *(Target(f"udp {each}", "AF_INET", "SOCK_DGRAM", [each, port]) for each, port in udp.items()),
            Target("tcp ::1", "AF_INET6", "SOCK_STREAM", ["::1", tcp6]),
            Target("abstract socket", "AF_UNIX", "SOCK_STREAM", f"@{abstract}"),
        ]
        answering = await asyncio.gather(*(asyncio.to_thread(_answers, each) for each in here))
        assert all(answering), list(zip(here, answering, strict=True))
        for each in loopback_in_a_box:
            here.append(Target(f"tcp {each}", "AF_INET", "SOCK_STREAM", [each, tcp]))
            here.append(Target(f"udp {each}", "AF_INET", "SOCK_DGRAM", [each, udp["127.0.0.1"]]))
        yield here


async def _listen(stack: AsyncExitStack) -> tuple[int, int, str]:
    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    abstract = f"evolve-test-{uuid.uuid4()}"
    server = await asyncio.start_server(accepted, None, 0, family=socket.AF_INET)
    server6 = await asyncio.start_server(accepted, "::", 0, family=socket.AF_INET6)
    unix = await asyncio.start_unix_server(accepted, f"\0{abstract}")
    for each in (server, server6, unix):
        await stack.enter_async_context(each)
    tcp, tcp6 = (each.sockets[0].getsockname()[1] for each in (server, server6))
    return tcp, tcp6, abstract


async def _echo(stack: AsyncExitStack, address: str) -> int:
    """The port that echoes datagrams there."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(_Echo, local_addr=(address, 0))
    stack.callback(transport.close)
    return transport.get_extra_info("sockname")[1]


class _Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(data, addr)


def _answers(target: Target) -> bool:
    address = "\0" + target.address[1:] if isinstance(target.address, str) else tuple(target.address)
    with socket.socket(getattr(socket, target.family), getattr(socket, target.kind)) as probe:
        probe.settimeout(ANSWER_SEC)
        try:
            probe.connect(address)
            if target.kind == "SOCK_STREAM":
                return True
            probe.send(b"x")
            return probe.recv(1) == b"x"
        except OSError:
            return False
