"""What outlives whom on an engine: boxes their worker, pods their boxes; and who may touch what."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError

from activities.sandboxes import docker_pool, process
from activities.sandboxes.base import PIDS_LIMIT, Box, BoxSpec, BoxTag, ImageRef
from activities.sandboxes.docker import DockerProvider
from activities.sandboxes.docker_engine import connect, docker_engine
from activities.sandboxes.process import Chunk, ExitStatus, ProcessSpec
from domain.errors import DeleteRefused, ProviderCreateFailure, ProviderUnreachable, SandboxDeath
from tests.activities import docker_creator
from tests.activities.box_conformance import (
    Bench,
    answering_gateway,
    image_stays_while_a_box_needs_it,
    relay_answer,
    sh,
)
from tests.activities.docker_bench import (
    build_image,
    close_provider,
    engine_containers,
    engine_details,
    open_provider,
    pod_details,
)

pytestmark = pytest.mark.docker

DOCKERFILE = "FROM evolve-test/debian:bookworm\nWORKDIR /app\n"
ROOT = Path(__file__).parents[2]


@pytest_asyncio.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DockerProvider]:
    provider = await open_provider(str(uuid.uuid4()), tmp_path_factory.mktemp("life"))
    yield provider
    await close_provider(provider)


@pytest_asyncio.fixture
async def bench(provider: DockerProvider, tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(provider, await build_image(provider, tmp_path, DOCKERFILE), provider.installation_id)
    yield bench
    await bench.clean()


async def test_a_killed_worker_is_succeeded_by_one_that_goes_on(
    provider: DockerProvider, bench: Bench
) -> None:
    folder = provider.state_dir.parent
    trial_id = str(uuid.uuid4())
    tag = BoxTag(bench.installation_id, "job", trial_id, 1, 0, "agent", 2)
    bench.made.append(tag.name)
    arguments = (bench.installation_id, str(folder), trial_id, bench.image.handle)
    worker = await asyncio.create_subprocess_exec(
        sys.executable, docker_creator.__file__, *arguments,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert worker.stdout is not None
    assert await worker.stdout.readline() == b"ready\n"
    worker.kill()
    await worker.wait()

    async with answering_gateway(provider.gateway_socket):
        box = await bench.provider.create(BoxSpec(tag, bench.image, "no-network", 600.0))
        assert await relay_answer(box) == "gateway"
        await process.start(box, ProcessSpec("agent", ["sh", "-c", docker_creator.COMMAND]))
        await box.write("/app/go", b"")
        items = [item async for item in process.follow(box, "agent", {"out": 2})]
    assert b"".join(each.data for each in items if isinstance(each, Chunk)) == b"gan\nended\n"
    assert isinstance(items[-1], ExitStatus)
    assert items[-1].exit_code == 3
    assert await box.read("/app/runs") == b"once\n"
    # The pod was the dead worker's: it goes with the box.
    pod = (await pod_details(box.box_id))["Id"]
    await bench.provider.destroy(box.box_id)
    assert pod not in await _ids(bench)


async def test_an_image_stays_while_a_box_needs_it(bench: Bench) -> None:
    await image_stays_while_a_box_needs_it(bench)


async def test_an_engine_that_forbids_a_delete_is_told_apart_and_lets_the_box_be_stopped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forbid(container: DockerContainer) -> None:
        raise DockerError(403, "authorization denied by plugin")

    spec = bench.spec()
    box = await bench.provider.create(spec)
    with monkeypatch.context() as guarded:
        guarded.setattr("activities.sandboxes.docker.delete", forbid)
        with pytest.raises(DeleteRefused, match="authorization denied"):
            await bench.provider.destroy(box.box_id)
        await bench.provider.stop(box.box_id)
        [listed] = await bench.provider.list(bench.installation_id)
        assert not listed.is_running
    await bench.provider.destroy(box.box_id)
    assert await bench.provider.list(bench.installation_id) == []


async def test_what_a_dead_worker_left_unused_is_removed_by_the_next(
    provider: DockerProvider, bench: Bench
) -> None:
    dead = await open_provider(bench.installation_id, provider.state_dir.parent)
    box = await Bench(dead, bench.image, bench.installation_id).box()
    pod = (await pod_details(box.box_id))["Id"]
    await dead.destroy(box.box_id)
    assert await provider.clear_litter(is_dry=False) == []
    assert pod in await _ids(bench)
    dead._pool._lock.close()  # what the kernel does for a process that was killed
    named = [f"pod {pod[:12]}"]
    assert await provider.clear_litter(is_dry=True) == named
    assert pod in await _ids(bench)
    assert await provider.clear_litter(is_dry=False) == named
    assert pod not in await _ids(bench)
    await dead.close()


async def test_a_pod_that_an_engine_made_and_died_over_is_removed_once_it_is_back(
    provider: DockerProvider, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: object, **__: object) -> None:
        raise DockerError(900, "Cannot connect to Docker Engine")

    living = await open_provider(bench.installation_id, provider.state_dir.parent)
    before = await _ids(bench)
    try:
        with monkeypatch.context() as away:
            away.setattr(DockerContainer, "start", die)
            away.setattr(DockerContainer, "delete", die)
            with pytest.raises(ProviderUnreachable):
                await Bench(living, bench.image, bench.installation_id).box()
        [pod] = set(await _ids(bench)) - set(before)
        assert await living.clear_litter(is_dry=False) == [f"pod {pod[:12]}"]
        assert await _ids(bench) == before
    finally:
        await living.close()


async def test_an_idle_pod_serves_the_next_box(bench: Bench) -> None:
    first = await bench.box()
    pod = (await pod_details(first.box_id))["Id"]
    await bench.provider.destroy(first.box_id)
    second = await bench.box()
    assert (await pod_details(second.box_id))["Id"] == pod
    third = await bench.box()
    assert (await pod_details(third.box_id))["Id"] != pod


async def test_a_pod_brings_nothing_of_its_last_box(bench: Bench) -> None:
    first = await bench.box()
    pod = (await pod_details(first.box_id))["Id"]
    await sh(first, "echo 10.9.9.9 planted >>/etc/hosts; echo nameserver 6.6.6.6 >/etc/resolv.conf")
    await sh(first, "echo planted >/etc/hostname; echo x >/dev/shm/planted")
    await bench.provider.destroy(first.box_id)
    second = await bench.box()
    assert (await pod_details(second.box_id))["Id"] == pod
    seen = await sh(second, "cat /etc/hosts /etc/resolv.conf /etc/hostname; ls /dev/shm")
    assert "planted" not in seen
    assert "6.6.6.6" not in seen


# The server closes first, so that its port stays in TIME_WAIT.
LINGER = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
client = socket.create_connection(("127.0.0.1", 8000))
accepted, _ = server.accept()
accepted.close(); client.recv(1); client.close()
"""


async def test_a_pod_with_ports_that_linger_is_not_used_again(bench: Bench) -> None:
    first = await bench.box()
    pod = (await pod_details(first.box_id))["Id"]
    assert (await first.run(["python3", "-c", LINGER])).exit_code == 0
    await bench.provider.destroy(first.box_id)
    second = await bench.box()
    assert (await pod_details(second.box_id))["Id"] != pod


async def test_a_pod_whose_network_was_switched_is_not_used_again(bench: Bench) -> None:
    first = await bench.box()
    pod = (await pod_details(first.box_id))["Id"]
    await first.set_network("public")
    await bench.provider.destroy(first.box_id)
    second = await bench.box()
    assert (await pod_details(second.box_id))["Id"] != pod


async def test_a_pod_that_stays_unused_goes_away(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_pool, "IDLE_SEC", 0.1)
    box = await bench.box()
    pod = (await pod_details(box.box_id))["Id"]
    await bench.provider.destroy(box.box_id)
    while pod in await _ids(bench):  # noqa: ASYNC110 - the state of the engine
        await asyncio.sleep(0.02)


async def test_nothing_is_left_when_a_provider_is_closed(tmp_path: Path) -> None:
    provider = await open_provider(str(uuid.uuid4()), tmp_path)
    bench = Bench(provider, await build_image(provider, tmp_path, DOCKERFILE), provider.installation_id)
    boxes = await asyncio.gather(*(bench.box(network_mode="public") for _ in range(2)))
    await asyncio.gather(*(provider.destroy(box.box_id) for box in boxes))
    await close_provider(provider)
    assert await engine_containers(provider.installation_id) == []
    assert [path for path in (tmp_path / "state").rglob("*") if path.parent.name in ("boxes", "pools")] == []


async def test_two_installations_never_touch_each_other(bench: Bench, tmp_path: Path) -> None:
    other = await open_provider(str(uuid.uuid4()), tmp_path)
    theirs = await bench.box()
    assert await other.list(other.installation_id) == []
    await other.destroy(theirs.box_id)
    with pytest.raises(SandboxDeath):
        await other.attach(theirs.box_id)
    trial_id = theirs.box_id.removeprefix("evolve-").removesuffix("-1-0-agent")
    tag = BoxTag(other.installation_id, "job", trial_id, 1, 0, "agent", 9)
    assert tag.name == theirs.box_id
    with pytest.raises(ProviderCreateFailure, match="another installation"):
        await other.create(BoxSpec(tag, bench.image, "no-network", 600.0))
    assert (await theirs.run(["true"])).exit_code == 0
    await close_provider(other)
    assert (await theirs.run(["true"])).exit_code == 0


async def test_limits_bite(bench: Bench) -> None:
    box = await bench.box(memory_mb=64, cpus=0.5)
    hog = await box.run(["python3", "-c", "x = bytearray(200 * 2**20)"])
    assert hog.exit_code == 128 + signal.SIGKILL
    host = (await engine_details(box.box_id))["HostConfig"]
    assert (host["NanoCpus"], host["MemorySwap"], host["PidsLimit"]) == (500_000_000, 64 * 2**20, PIDS_LIMIT)


async def test_a_box_shows_nothing_of_the_worker(bench: Bench) -> None:
    box = await bench.box(env={"DECLARED": "yes"})
    environment = (await sh(box, "tr '\\0' '\\n' </proc/1/environ")).split("\n")
    assert {each.partition("=")[0] for each in environment} <= {"PATH", "HOSTNAME", "HOME", "DECLARED", ""}
    assert (await box.run(["sh", "-c", "echo x >/proc/sys/kernel/core_pattern"])).exit_code != 0


async def test_a_box_that_cannot_start_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    assert isinstance(bench.provider, DockerProvider)
    empty = await build_image(bench.provider, tmp_path, "FROM scratch\nLABEL a=b\n")
    spec = bench.spec()
    with pytest.raises(ProviderCreateFailure, match="/bin/sh"):
        await bench.provider.create(BoxSpec(spec.tag, empty, "no-network", 600.0))
    with pytest.raises(ProviderCreateFailure, match="image"):
        await bench.provider.create(BoxSpec(spec.tag, ImageRef("x", "evolve/absent:1"), "no-network", 600.0))
    assert await bench.provider.list(bench.installation_id) == []


async def test_a_box_that_ended_is_made_anew_for_the_next_try(bench: Bench) -> None:
    spec = bench.spec()
    box = await bench.provider.create(spec)
    await _kill(box)
    again = await bench.provider.create(bench.spec(fence=2, trial_id=spec.tag.trial_id))
    assert (await again.run(["true"])).exit_code == 0


async def test_a_box_whose_pod_is_lost_is_made_anew(bench: Bench) -> None:
    spec = bench.spec()
    box = await bench.provider.create(spec)
    async with connect((await docker_engine()).socket) as docker:
        pod = (await pod_details(box.box_id))["Id"]
        await docker.containers.container(pod).delete(force=True)
    again = await bench.provider.create(bench.spec(fence=2, trial_id=spec.tag.trial_id))
    assert (await pod_details(again.box_id))["State"]["Running"]


async def _ids(bench: Bench) -> list[str]:
    """Of all containers of the installation, pods too."""
    return [each["Id"] for each in await engine_containers(bench.installation_id)]


async def _kill(box: Box) -> None:
    async with connect((await docker_engine()).socket) as docker:
        await docker.containers.container(box.box_id).kill()


async def test_an_engine_that_is_not_there_or_not_here_is_refused_by_name(tmp_path: Path) -> None:
    absent = await docker_engine(f"unix://{tmp_path}/no.sock")
    assert absent.refusal is not None
    assert f"{tmp_path}/no.sock" in absent.refusal
    distant = await docker_engine("tcp://192.0.2.1:2375")
    assert distant.refusal is not None
    assert "tcp://192.0.2.1:2375" in distant.refusal
    here = await docker_engine()
    assert (here.refusal, here.api_version >= "1.4") == (None, True)
