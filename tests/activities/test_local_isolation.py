"""What a local box must not do to this host, tried from inside as its root."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import pytest_asyncio

from activities.sandboxes import process
from activities.sandboxes.base import NetworkMode
from activities.sandboxes.local_host import LocalHost, find_program
from activities.sandboxes.local_spawn import run_program
from activities.sandboxes.process import Chunk, ProcessSpec
from domain.errors import ProviderCreateFailure
from tests.activities.box_conformance import (
    Bench,
    Target,
    answering_gateway,
    reached_from,
    relay_answer,
    sh,
)
from tests.activities.host_listeners import METADATA, host_listeners
from tests.activities.local_bench import clean, local_bench
from tests.waiting import eventually


@pytest_asyncio.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with local_bench(tmp_path_factory.mktemp("local")) as bench:
        yield bench


@pytest_asyncio.fixture
async def bench(shared: Bench) -> AsyncIterator[Bench]:
    yield shared
    await clean(shared)


# Prints each file of /proc that is meant to be written, opens for that, and is no process's own.
WRITABLE_PROC = r"""
import os
for folder, folders, files in os.walk("/proc"):
    folders[:] = [f for f in folders if not f.isdigit() and f not in ("self", "thread-self", "net")]
    for name in files:
        path = os.path.join(folder, name)
        try:
            if os.stat(path).st_mode & 0o222:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                print(path)
        except OSError:
            pass
"""

# The same with every capability that a command of ours may enter with: what a box's root gets to be
# when it replaces the program that drops them.
REPLACED_SETPRIV = """#!/bin/sh
{
    umount /proc/sys; mount -o remount,rw /proc/sys; mount -t proc proc /mnt; mount -t tmpfs none /mnt
    unshare -m sh -c 'umount /proc/sys; mount -o remount,bind,rw /proc/sys; mount -t proc proc /mnt'
    unshare -U true && echo made a user namespace
    ip link set lo down && echo took the network down
    for f in /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sysrq-trigger; do
        (exec 3>>$f) && echo opened $f
    done
} 2>/dev/null
echo asked
"""


async def test_no_file_of_the_kernel_can_be_written(bench: Bench) -> None:
    box = await bench.box()
    assert await sh(box, 'python3 -c "$PROBE"', env={"PROBE": WRITABLE_PROC}) == ""


@pytest.mark.root
async def test_a_replaced_program_that_gets_all_capabilities_can_undo_nothing(bench: Bench) -> None:
    box = await bench.box()
    await box.write("/usr/bin/setpriv", REPLACED_SETPRIV.encode(), mode=0o755)
    assert (await box.run(["true"])).stdout == b"asked\n"


async def test_what_enters_a_box_is_read_only_where_it_comes_from(bench: Bench) -> None:
    """A box's program may be a script whose interpreter is /proc/self/exe: the nsenter that ran it."""
    box = await bench.box()
    pod = box._pod[0]  # type: ignore[attr-defined]
    host = bench.provider._host  # type: ignore[attr-defined]
    for program in (find_program("nsenter") or "", host.bwrap):
        new = str(Path(program).with_name("new"))
        tried = await run_program([*host.enter(pod, "--mount"), "/bin/sh", "-c", f': >>"{new}"'])
        assert b"Read-only file system" in tried.stderr
    running = asyncio.create_task(box.run(["sleep", "600"], timeout_sec=600.0))
    await eventually(lambda: bool(entering_programs()))
    entered = entering_programs()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert all(entered)


def entering_programs() -> list[bool]:
    """Of each nsenter that waits for `sleep 600` in a box: whether its file was on a read-only mount."""
    found: list[bool] = []
    for path, words in command_lines():
        if words[0].endswith("nsenter") and "--wdns=/app" in words and words[-2:] == ["sleep", "600"]:
            found.append(bool(os.statvfs(path / "exe").f_flag & os.ST_RDONLY))
    return found


def command_lines() -> list[tuple[Path, list[str]]]:
    """Every process of this host with its words."""
    found: list[tuple[Path, list[str]]] = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append((path, (path / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")))
    return found


async def test_the_first_process_of_a_box_tells_nothing_of_the_worker(bench: Bench) -> None:
    os.environ["WORKERS_SECRET"] = "must not be seen"
    try:
        box = await bench.box()
        told = await sh(box, "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr '\\0' '\\n'")
    finally:
        del os.environ["WORKERS_SECRET"]
    assert "must not be seen" not in told
    assert str(Path(__file__).parents[2]) not in told
    assert "bwrap" not in told


async def test_a_literal_is_in_no_command_line_of_the_host(bench: Bench) -> None:
    box = await bench.box()
    running = asyncio.create_task(box.run(["sleep", "1.7"], env={"VALUE": "not-for-ps-30291"}))
    await eventually(lambda: any(words == ["sleep", "1.7"] for _, words in command_lines()))
    assert not any("not-for-ps-30291" in " ".join(words) for _, words in command_lines())
    await running


async def test_nothing_of_the_host_is_seen(bench: Bench) -> None:
    box = await bench.box()
    words = set((await sh(box, "ls /home /root /sys /dev")).split())
    assert not words & set(os.listdir("/home"))
    shadow = [line.split(":")[1] for line in (await sh(box, "cat /etc/shadow")).splitlines()]
    assert set(shadow) == {"*"}
    assert len(await box.processes()) <= 1
    assert not words & {"sda", "vda", "mem", "kmsg", "kvm", "net", "loop0", "fuse"}


async def test_a_command_has_no_capability_that_reaches_out_of_its_box(bench: Bench) -> None:
    box = await bench.box()
    status = await sh(box, "cat /proc/self/status /proc/1/status")
    # capability(7): net admin and raw, modules, raw io, ptrace, sys admin, boot, time, mknod, perfmon, bpf
    reaching = sum(1 << number for number in (12, 13, 16, 17, 19, 21, 22, 25, 27, 38, 39, 40))
    for line in status.splitlines():
        if line.startswith(("CapEff", "CapPrm")):
            assert int(line.split()[1], 16) & reaching == 0
    assert status.count("NoNewPrivs:\t1") == 2


# Needs /dev/net/tun: the run as a normal user brings its own.
MODES = ("no-network", pytest.param("public", marks=pytest.mark.tun))
PRIVATE = Target("private", "AF_INET", "SOCK_STREAM", ["10.1.2.3", 80])


def unreachable() -> AbstractAsyncContextManager[list[Target]]:
    """What answers here, also by the name that slirp4netns has for this host."""
    return host_listeners(["10.0.2.2"])


@pytest.mark.parametrize("mode", MODES)
async def test_a_box_reaches_the_relay_and_nothing_else_of_this_host(bench: Bench, mode: NetworkMode) -> None:
    box = await bench.box(network_mode=mode)
    async with unreachable() as targets:
        assert await reached_from(box, [*targets, METADATA, PRIVATE]) == []
    async with answering_gateway(bench.provider._host.gateway_socket):  # type: ignore[attr-defined]
        assert await relay_answer(box) == "gateway"


async def test_a_public_box_that_this_host_cannot_make_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def why_not_public(host: LocalHost) -> str:
        return "needs the program 'slirp4netns', which is not installed here"

    monkeypatch.setattr(LocalHost, "why_not_public", why_not_public)
    async with local_bench(tmp_path) as bench:
        with pytest.raises(ProviderCreateFailure, match="network mode 'public' needs the program"):
            await bench.box(network_mode="public")


@pytest.mark.tun
async def test_a_public_box_has_a_name_server_and_loses_it_with_its_network(bench: Bench) -> None:
    box = await bench.box(network_mode="public")
    assert await sh(box, "cat /etc/resolv.conf") == "nameserver 10.0.2.3\n"
    assert "tap0" in await sh(box, "cat /proc/net/dev")
    await box.set_network("no-network")
    assert "tap0" not in await sh(box, "cat /proc/net/dev; cat /etc/resolv.conf")
    await box.set_network("public")
    assert "tap0" in await sh(box, "cat /proc/net/dev")
    async with unreachable() as targets:
        assert await reached_from(box, targets) == []


@pytest.mark.tun
async def test_a_box_that_began_without_network_gets_the_same_firewall(bench: Bench) -> None:
    box = await bench.box()
    await box.set_network("public")
    async with unreachable() as targets:
        assert await reached_from(box, targets) == []


SERVE = """
import socket, time
listener = socket.create_server(("0.0.0.0", 9999))
print("listening", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("mode", MODES)
async def test_boxes_do_not_reach_each_other(bench: Bench, mode: NetworkMode) -> None:
    first, second = await bench.box(network_mode=mode), await bench.box(network_mode=mode)
    await process.start(first, ProcessSpec("server", ["python3", "-c", SERVE]))
    async for item in process.follow(first, "server", {}):
        assert item == Chunk("out", 0, b"listening\n")
        break
    own = ["127.0.0.1", *(["10.0.2.100"] if mode == "public" else [])]
    targets = [Target(each, "AF_INET", "SOCK_STREAM", [each, 9999]) for each in own]
    assert set(own) <= set(await reached_from(first, targets)), "its own addresses answer the first"
    assert await reached_from(second, targets) == []


async def test_an_allowlist_is_refused_by_name(bench: Bench) -> None:
    with pytest.raises(ProviderCreateFailure, match="allowlist"):
        await bench.box(network_mode="allowlist")
