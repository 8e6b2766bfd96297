"""What a docker box reaches: the relay in every mode, the internet in `public`, nothing else here."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from activities.sandboxes.base import Box, NetworkMode
from activities.sandboxes.docker import DockerProvider
from tests.activities.box_conformance import (
    BOTH_MODES,
    Bench,
    Target,
    answering_gateway,
    reached_from,
    relay_answer,
    sh,
)
from tests.activities.docker_bench import build_image, children_of, close_provider, open_provider, pod_details
from tests.activities.host_listeners import METADATA, host_listeners
from tests.waiting import eventually

pytestmark = pytest.mark.docker


@pytest_asyncio.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DockerProvider]:
    folder = tmp_path_factory.mktemp("net")
    provider = await open_provider(str(uuid.uuid4()), folder)
    async with answering_gateway(folder / "gateway" / "gateway.sock"):
        yield provider
    await close_provider(provider)


@pytest_asyncio.fixture
async def bench(provider: DockerProvider, tmp_path: Path) -> AsyncIterator[Bench]:
    image = await build_image(provider, tmp_path, "FROM evolve-test/debian:bookworm\nWORKDIR /app\n")
    bench = Bench(provider, image, provider.installation_id)
    yield bench
    await bench.clean()


@pytest_asyncio.fixture
async def listeners() -> AsyncIterator[list[Target]]:
    async with host_listeners() as targets:
        yield targets


async def _address_of(box: Box) -> str:
    """The box's own address on its network."""
    script = "import socket; s = socket.socket(2, 2); s.connect(('192.0.2.1', 9)); print(s.getsockname()[0])"
    return (await sh(box, f'python3 -c "{script}"')).strip()


async def _listen_in(box: Box) -> None:
    await sh(box, "python3 -m http.server 8000 --bind 0.0.0.0 >/dev/null 2>&1 &")
    script = "import socket,time\nwhile socket.socket().connect_ex(('127.0.0.1', 8000)): time.sleep(0.02)"
    assert (await box.run(["python3", "-c", script])).exit_code == 0


@pytest.mark.parametrize("mode", BOTH_MODES)
async def test_only_the_relay_answers_of_this_machine(
    bench: Bench, listeners: list[Target], mode: NetworkMode
) -> None:
    box, other = await asyncio.gather(bench.box(network_mode=mode), bench.box(network_mode="public"))
    await asyncio.gather(_listen_in(box), _listen_in(other))
    other_address = await _address_of(other)
    gateway = f"{other_address.rpartition('.')[0]}.1"
    targets = [
        *listeners,
        Target("itself", "AF_INET", "SOCK_STREAM", ["127.0.0.1", 8000]),
        Target("another box", "AF_INET", "SOCK_STREAM", [other_address, 8000]),
        Target("bridge", "AF_INET", "SOCK_STREAM", [gateway, 22]),
        METADATA,
    ]
    assert set(await reached_from(box, targets)) - {"itself through lo"} == {"itself"}
    assert await relay_answer(box) == "gateway"


@pytest.mark.parametrize("mode", BOTH_MODES)
async def test_a_box_can_neither_see_nor_change_its_firewall(bench: Bench, mode: NetworkMode) -> None:
    box = await bench.box(network_mode=mode)
    capabilities = int((await sh(box, "grep CapBnd /proc/self/status")).split()[1], 16)
    net_admin, net_raw = 1 << 12, 1 << 13
    assert capabilities & (net_admin | net_raw) == 0
    raw = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"
    assert b"PermissionError" in (await box.run(["python3", "-c", raw])).stderr
    # A user namespace of its own has no authority over the pod's network.
    move = "unshare -Ur sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'"
    assert (await box.run(["sh", "-c", move])).exit_code != 0
    assert (await box.run(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])).exit_code != 0


async def test_ipv6_leads_nowhere_in_public(bench: Bench) -> None:
    box = await bench.box(network_mode="public")
    v6 = [
        Target("documentation", "AF_INET6", "SOCK_STREAM", ["2001:db8::1", 80]),
        Target("link-local", "AF_INET6", "SOCK_STREAM", ["fe80::1", 80, 0, 2]),
    ]
    assert await reached_from(box, v6) == []


async def test_public_has_a_way_out_and_no_network_has_none(bench: Bench) -> None:
    public, closed = await asyncio.gather(bench.box(network_mode="public"), bench.box())
    # A documentation address: nobody answers there, but only one of them has a route to it.
    script = (
        "import socket,errno; s = socket.socket(); s.settimeout(0.5); print(s.connect_ex(('192.0.2.1', 80)))"
    )
    assert (await sh(closed, f'python3 -c "{script}"')).strip() == "101"
    assert (await sh(public, f'python3 -c "{script}"')).strip() != "101"


async def test_the_network_of_a_running_box_is_switched_and_the_relay_stays(
    bench: Bench, listeners: list[Target]
) -> None:
    box = await bench.box(network_mode="public")
    await box.set_network("no-network")
    await box.set_network("no-network")
    interfaces = "tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' ' | sort"
    assert (await sh(box, interfaces)).split() == ["lo"]
    assert await relay_answer(box) == "gateway"
    await box.set_network("public")
    assert len((await sh(box, interfaces)).split()) == 2
    assert await reached_from(box, listeners) == []
    assert await relay_answer(box) == "gateway"


@pytest.mark.root
async def test_the_relay_comes_back_when_it_is_killed(bench: Bench) -> None:
    box = await bench.box()
    pod_pid = (await pod_details(box.box_id))["State"]["Pid"]
    [relay] = children_of(pod_pid)
    os.kill(relay, signal.SIGKILL)
    await eventually(lambda: children_of(pod_pid) not in ([], [relay]))
    script = "import socket,time\nwhile socket.socket().connect_ex(('127.0.0.1', 8801)): time.sleep(0.02)"
    assert (await box.run(["python3", "-c", script])).exit_code == 0
    assert await relay_answer(box) == "gateway"


async def test_the_names_of_the_host_are_not_told(bench: Bench) -> None:
    box = await bench.box()
    assert await sh(box, "hostname; cat /etc/hostname") == "sandbox\nsandbox\n"
    assert "sandbox" in await sh(box, "getent hosts sandbox")
    environment = (await sh(box, "tr '\\0' '\\n' </proc/1/environ")).split("\n")
    assert {each.partition("=")[0] for each in environment} <= {"PATH", "HOSTNAME", "HOME", ""}
