"""Boxes of the local provider: what every provider promises, and their life beside a worker's."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from activities.sandboxes import cgroups, local_host, process
from activities.sandboxes.base import Box
from activities.sandboxes.local_offer import local_offer
from activities.sandboxes.process import ExitStatus, ProcessSpec
from domain.errors import ProviderCreateFailure, SandboxDeath, TaskError
from tests.activities.box_conformance import (
    Bench,
    EndingProcesses,
    MakingBoxes,
    MovingFiles,
    RunningCommands,
    answering_gateway,
    image_stays_while_a_box_needs_it,
    keys,
    relay_answer,
    sh,
)
from tests.activities.local_bench import IS_ROOT, clean, image_request, leftovers, local_bench
from tests.waiting import eventually


@pytest_asyncio.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with local_bench(tmp_path_factory.mktemp("local")) as bench:
        yield bench


@pytest_asyncio.fixture
async def bench(shared: Bench) -> AsyncIterator[Bench]:
    yield shared
    await clean(shared)


async def until_dead(box: Box) -> None:
    """Return when the box is gone; the test's own timeout bounds the wait."""
    try:
        while True:
            await box.run(["true"])
    except SandboxDeath:
        return


def kill_relay(socket_path: Path) -> None:
    subprocess.run(["pkill", "-9", "-f", "--", f"-I -S .*relay.py {socket_path}"], check=True)


class TestMakingLocalBoxes(MakingBoxes):
    pass


class TestRunningInLocalBoxes(RunningCommands):
    async def test_a_command_runs_as_its_user(self, bench: Bench) -> None:
        if IS_ROOT:
            await super().test_a_command_runs_as_its_user(bench)
            return
        box = await bench.box()
        assert await sh(box, "id -u") == "0\n"
        with pytest.raises(TaskError, match="nobody"):
            await box.run(["true"], user="nobody")


class TestFilesOfLocalBoxes(MovingFiles):
    async def test_a_written_file_has_its_mode_and_owner(self, bench: Bench) -> None:
        if IS_ROOT:
            await super().test_a_written_file_has_its_mode_and_owner(bench)
            return
        box = await bench.box()
        await box.write("/app/tool", b"#!/bin/sh\n", mode=0o750)
        assert await sh(box, "stat -c '%a %U' tool") == "750 root\n"


class TestEndingProcessesOfLocalBoxes(EndingProcesses):
    async def test_an_agent_that_kills_all_it_can_leaves_its_box_for_the_verifier(self, bench: Bench) -> None:
        box = await bench.box()
        await box.run(["sh", "-c", "kill -9 -1"])
        await sh(box, "kill -9 1; kill -TERM 1; kill -INT 1; pkill sleep; true")
        assert (await box.run(["true"])).exit_code == 0

    async def test_orphans_are_reaped_by_the_boxs_first_process(self, bench: Bench) -> None:
        box = await bench.box()
        await sh(box, "for i in 1 2 3; do (setsid true &) ; done; sleep 0.1")
        states = await sh(box, "cat /proc/[0-9]*/stat | cut -d' ' -f3")
        assert "Z" not in states


async def test_a_box_ends_by_itself_when_its_lifetime_is_over(bench: Bench) -> None:
    box = await bench.box(lifetime_sec=1.0)
    [own] = [each for each in await bench.provider.list(bench.installation_id) if each.box_id == box.box_id]
    assert own.is_running

    await until_dead(box)
    with pytest.raises(SandboxDeath):
        await bench.provider.attach(box.box_id)


async def test_what_ended_is_made_anew_under_the_same_name(bench: Bench) -> None:
    spec = bench.spec()
    first = await bench.provider.create(spec)
    await first.write("/app/mark", b"old")
    os.kill(first._init[0], signal.SIGKILL)  # type: ignore[attr-defined] - the fault itself
    await until_dead(first)
    second = await bench.provider.create(spec)
    with pytest.raises(FileNotFoundError):
        await second.read("/app/mark")


async def test_the_relay_answers_and_comes_back_when_it_dies(shared: Bench, bench: Bench) -> None:
    box = await bench.box()
    socket_path = bench.provider._host.gateway_socket  # type: ignore[attr-defined]
    async with answering_gateway(socket_path):
        assert await relay_answer(box) == "gateway"
        kill_relay(socket_path)
        answer = ""
        while not answer:  # refused until it listens again
            answer = await relay_answer(box)
        assert answer == "gateway"


CREATOR = """
import asyncio, sys
from pathlib import Path
from activities.sandboxes import process
from activities.sandboxes.base import BoxSpec, BoxTag, ImageRef
from activities.sandboxes.local import LocalProvider

async def main(state_dir, handle, stop_after):
    provider = LocalProvider(Path(state_dir), Path(state_dir) / "gw" / "gateway.sock")
    tag = BoxTag("inst", "job", "killed", 1, 0, "agent", 1)
    spec = BoxSpec(tag, ImageRef("x", handle), "no-network", 600.0)
    now = lambda: print("now", flush=True)
    if stop_after:
        asyncio.get_running_loop().call_later(float(stop_after), now)
    box = await provider.create(spec)
    script = "echo once >>/app/ran; sleep 1; exit 5"
    await process.start(box, process.ProcessSpec("agent", ["sh", "-c", script]))
    now()
    await asyncio.sleep(600)

asyncio.run(main(*sys.argv[1:]))
"""


async def _killed_creator(bench: Bench, stop_after: str) -> None:
    """A worker that makes the box `killed` and is killed at that moment ("": when it is made)."""
    state_dir = bench.provider._host.state_dir  # type: ignore[attr-defined]
    await _killed(CREATOR, str(state_dir), bench.image.handle, stop_after)


async def _killed(program: str, *arguments: str) -> None:
    """Run a program of ours and kill it with -9 when it says now."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    worker = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", program, *arguments],
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"now\n"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    await worker.wait()


async def test_a_box_outlives_the_worker_that_made_it_and_its_process_is_followed_on(bench: Bench) -> None:
    await _killed_creator(bench, "")
    bench.made.append("evolve-killed-1-0-agent")
    box = await bench.provider.attach("evolve-killed-1-0-agent")
    again = ProcessSpec("agent", ["sh", "-c", "echo twice >>/app/ran"])
    await process.start(box, again)
    [*_, end] = [item async for item in process.follow(box, "agent", {})]
    assert isinstance(end, ExitStatus)
    assert end.exit_code == 5
    assert await box.read("/app/ran") == b"once\n"


@pytest.mark.parametrize("stop_after", ["0.01", "0.05", "0.1", "0.15", "0.2", "0.3"])
async def test_a_worker_killed_in_the_middle_of_a_create_leaves_nothing_unfound(
    bench: Bench, stop_after: str
) -> None:
    await _killed_creator(bench, stop_after)
    state_dir = bench.provider._host.state_dir  # type: ignore[attr-defined]
    await bench.provider.destroy("evolve-killed-1-0-agent")
    await eventually(lambda: not leftovers(state_dir))


# Dies in the middle of a build, by its own hand: whoever waits for a word may kill it between two.
BUILDER = """
import asyncio, os, signal, sys
from pathlib import Path
from activities.sandboxes.local import LocalProvider
from tests.activities.local_bench import image_request

async def main(state_dir, folder):
    provider = LocalProvider(Path(state_dir), Path(state_dir) / "gw" / "gateway.sock")
    asyncio.create_task(die(provider))
    while True:
        await provider.ensure_image(image_request(Path(folder), "FROM any\\nWORKDIR /x\\n"))

async def die(provider):
    while True:
        begun = set(provider._host.build_names())
        await asyncio.sleep(0.03)
        if begun & set(provider._host.build_names()):
            print("now", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_a_killed_builder_left_is_cleared_as_litter(bench: Bench, tmp_path: Path) -> None:
    state_dir = bench.provider._host.state_dir  # type: ignore[attr-defined]
    await _killed(BUILDER, str(state_dir), str(tmp_path))
    named = await bench.provider.clear_litter(is_dry=True)
    assert named
    assert leftovers(state_dir)
    assert await bench.provider.clear_litter(is_dry=False) == named
    await eventually(lambda: not leftovers(state_dir))


async def test_an_image_stays_while_a_box_needs_it(bench: Bench, tmp_path: Path) -> None:
    image = await bench.provider.ensure_image(
        image_request(tmp_path, "FROM any\nENV OTHER=1\n", bench.installation_id)
    )
    await image_stays_while_a_box_needs_it(replace(bench, image=image))


async def test_fifty_boxes_live_at_once(bench: Bench) -> None:
    boxes: list[Box] = await asyncio.gather(*(bench.box() for _ in range(50)))
    told = await asyncio.gather(*(sh(box, f"echo {n} >n; cat n") for n, box in enumerate(boxes)))
    assert told == [f"{n}\n" for n in range(50)]


@pytest.mark.root
@pytest.mark.skipif(not cgroups.controllers(), reason="this host lets us set no control groups")
class TestLimitsAsRoot:
    async def test_memory_is_limited(self, bench: Bench) -> None:
        box = await bench.box(memory_mb=128)
        assert (await box.run(["python3", "-c", "x = bytearray(400 << 20)"])).exit_code == 137
        assert (await box.run(["true"])).exit_code == 0

    async def test_cpu_is_limited(self, bench: Bench) -> None:
        box = await bench.box(cpus=0.2)
        used = await sh(
            box,
            "python3 -c 'import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass\n"
            "print(time.process_time())'",
        )
        assert float(used) < 0.5


FORKS_SLEEPERS = """
import os, signal
count = 0
try:
    while True:
        if not os.fork():
            signal.pause()
        count += 1
except OSError:
    print(count)
"""


async def test_processes_are_limited_and_a_full_box_can_be_swept(bench: Bench) -> None:
    box = await bench.box()
    keep = await keys(box)
    forked = await box.run(["python3", "-c", FORKS_SLEEPERS], timeout_sec=120)
    assert 1_000 < int(forked.stdout) < 2_100
    assert await box.sweep(keep) >= int(forked.stdout) - 5
    assert await keys(box) == keep


async def test_filling_the_disk_of_a_box_fails_there_and_nowhere_else(bench: Bench, tmp_path: Path) -> None:
    box = await bench.box(storage_mb=64)
    filled = await box.run(["sh", "-c", "head -c 200000000 /dev/zero >/app/big"], timeout_sec=120)
    assert filled.exit_code != 0
    (tmp_path / "elsewhere").write_bytes(bytes(1 << 20))
    await sh(box, "rm /app/big; echo again >/app/small")


async def test_an_unknown_image_is_refused_by_name(bench: Bench) -> None:
    spec = replace(bench.spec(), image=replace(bench.image, handle="absent"))
    with pytest.raises(ProviderCreateFailure, match="absent"):
        await bench.provider.create(spec)


async def test_what_this_host_can_do_is_found_out(tmp_path: Path) -> None:
    found = await local_offer(tmp_path, tmp_path / "gateway.sock")
    assert found.refusal is None
    assert found.capabilities.supports_users == IS_ROOT
    assert ("storage_mb" in found.capabilities.unenforced) != local_host.LocalHost(
        tmp_path, tmp_path / "gateway.sock", sys.executable
    ).can_size_disks
    assert not leftovers(tmp_path)


def without(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    present = local_host.find_program
    monkeypatch.setattr(local_host, "find_program", lambda name: None if name == program else present(name))


@pytest.mark.parametrize("program", ["nsenter", "unshare", "setpriv", "sh"])
async def test_a_missing_program_is_named(
    tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(program, monkeypatch)
    found = await local_offer(tmp_path, tmp_path / "gateway.sock")
    assert found.refusal == f"local boxes need the program '{program}', which is not installed here"


@pytest.mark.parametrize("program", ["slirp4netns", "iptables-restore"])
async def test_a_program_that_only_public_needs_is_named(
    tmp_path: Path, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(program, monkeypatch)
    found = await local_offer(tmp_path, tmp_path / "gateway.sock")
    assert found.refusal is None
    assert "public" not in found.capabilities.network_modes
    assert f"needs the program '{program}'" in found.capabilities.missing_here["public"]
