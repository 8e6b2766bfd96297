"""Images of the docker provider: built once from a context as docker's own command line would send it."""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from activities.sandboxes import process
from activities.sandboxes.docker import DockerProvider
from activities.sandboxes.docker_context import context_files
from activities.sandboxes.docker_engine import connect, docker_engine
from activities.sandboxes.process import ProcessSpec
from activities.sandboxes.process_poll import Chunk
from domain.errors import ImageBuildFailed
from tests.activities.box_conformance import Bench, sh
from tests.activities.docker_bench import build_image, close_provider, image_request, open_provider

pytestmark = pytest.mark.docker

BASE = "FROM evolve-test/busybox:1\n"
ABSENT = "localhost:9/absent:1"


@pytest_asyncio.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DockerProvider]:
    provider = await open_provider(str(uuid.uuid4()), tmp_path_factory.mktemp("images"))
    yield provider
    await close_provider(provider)


@pytest_asyncio.fixture
async def bench(provider: DockerProvider, tmp_path: Path) -> AsyncIterator[Bench]:
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "with space").write_text("kept\n")
    (tmp_path / "context" / "ü.log").write_text("left out\n")
    (tmp_path / "context" / ".dockerignore").write_text("*.log\n")
    image = await build_image(provider, tmp_path, BASE + "WORKDIR /work\nCOPY . .\nUSER 1234\n")
    bench = Bench(provider, image, provider.installation_id)
    yield bench
    await bench.clean()


async def test_the_context_is_what_the_image_has(bench: Bench) -> None:
    box = await bench.box()
    assert (await sh(box, "ls -A")).split("\n")[:-1] == [".dockerignore", "Dockerfile", "with space"]
    assert box.workdir == "/work"
    assert await sh(box, "id -u") == "0\n"


async def test_an_image_of_musl_and_busybox_runs_boxes(bench: Bench) -> None:
    box = await bench.box(network_mode="public")
    assert (await box.run(["busybox", "true"])).exit_code == 0
    before = await box.processes()
    await sh(box, "sleep 1000 >/dev/null 2>&1 &")
    assert await box.sweep([(each.pid, each.start_ticks) for each in before]) == 1


async def test_a_user_of_such_an_image_runs_a_command_with_options_of_its_own(bench: Bench) -> None:
    box = await bench.box()
    await sh(box, "echo dev:x:1000:1000::/home/dev:/bin/sh >>/etc/passwd")
    argv = ["sh", "-c", 'id -u; echo "$@"', "x", "--json", "-o"]
    await process.start(box, ProcessSpec("agent", argv, user="dev", cwd="/"))
    items = [item async for item in process.follow(box, "agent", {})]
    assert b"".join(item.data for item in items if isinstance(item, Chunk)) == b"1000\n--json -o\n"


async def test_equal_content_is_built_once_by_everybody(provider: DockerProvider, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(
        BASE + f"RUN echo {uuid.uuid4()} >/mark && cat /proc/uptime >/when\n"
    )
    request = image_request(provider, tmp_path)
    second = DockerProvider(
        await docker_engine(),
        provider.installation_id,
        provider.state_dir,
        provider.gateway_socket,
        sys.executable,
    )
    refs = await asyncio.gather(*(each.ensure_image(request) for each in (provider, second, provider)))
    await second.close()
    assert len({ref.id for ref in refs}) == 1
    assert refs[0].id.startswith("sha256:")


async def test_a_failing_step_is_told_with_the_end_of_its_log(
    provider: DockerProvider, tmp_path: Path
) -> None:
    dockerfile = BASE + "RUN echo about to fail; ls /nowhere; exit 3\n"
    with pytest.raises(ImageBuildFailed, match="3") as caught:
        await build_image(provider, tmp_path, dockerfile)
    assert "about to fail" in (caught.value.excerpt or "")
    assert await _leftovers("about to fail") == []


async def test_a_base_that_cannot_be_had_is_named(provider: DockerProvider, tmp_path: Path) -> None:
    with pytest.raises(ImageBuildFailed, match=f"base image {ABSENT} is not on this engine"):
        await build_image(provider, tmp_path, f"FROM {ABSENT}\n")
    request = image_request(provider, tmp_path, docker_image=ABSENT)
    with pytest.raises(ImageBuildFailed, match=f"docker_image {ABSENT} is not on this engine"):
        await provider.ensure_image(request)


async def test_a_build_that_takes_too_long_is_ended(provider: DockerProvider, tmp_path: Path) -> None:
    mark = f"sleep {uuid.uuid4().int % 10**6 + 10**6}"
    (tmp_path / "Dockerfile").write_text(BASE + f"RUN {mark}\n")
    with pytest.raises(ImageBuildFailed, match="within 2 s"):
        await provider.ensure_image(image_request(provider, tmp_path, build_timeout_sec=2.0))
    while await _leftovers(mark):  # noqa: ASYNC110 - the engine ends it in its own time
        await asyncio.sleep(0.05)


async def test_what_is_no_dockerfile_is_told(provider: DockerProvider, tmp_path: Path) -> None:
    with pytest.raises(ImageBuildFailed, match="Dockerfile is missing"):
        await provider.ensure_image(image_request(provider, tmp_path))
    with pytest.raises(ImageBuildFailed, match=r"(?i)unknown instruction"):
        await build_image(provider, tmp_path, "NONSENSE\n")


async def test_a_pinned_image_is_used_as_it_is(provider: DockerProvider, tmp_path: Path) -> None:
    ref = await provider.ensure_image(image_request(provider, tmp_path, docker_image="evolve-test/busybox:1"))
    async with connect((await docker_engine()).socket) as docker:
        assert ref.id == (await docker.images.inspect("evolve-test/busybox:1"))["Id"]


async def _leftovers(command: str) -> list[str]:
    async with connect((await docker_engine()).socket) as docker:
        return [each.id for each in await docker.containers.list(all=True) if command in each["Command"]]


@pytest.mark.parametrize(
    ("patterns", "kept"),
    [
        ("", ["Dockerfile", "a", "a/b", "a/b/c.pyc", "a/x.md", "c.pyc", "d.md"]),
        ("*.pyc", ["Dockerfile", "a", "a/b", "a/b/c.pyc", "a/x.md", "d.md"]),
        ("**/*.pyc", ["Dockerfile", "a", "a/b", "a/x.md", "d.md"]),
        ("a", ["Dockerfile", "c.pyc", "d.md"]),
        ("/a/b/", ["Dockerfile", "a", "a/x.md", "c.pyc", "d.md"]),
        ("*\n!a/b", ["Dockerfile", "a", "a/b", "a/b/c.pyc"]),
        ("**\n!**/*.md", ["Dockerfile", "a", "a/x.md", "d.md"]),
        ("# a\n  d.md  \n?.pyc\na/*/*.py[a-c]", ["Dockerfile", "a", "a/b", "a/x.md"]),
        ("!d.md\nd.*", ["Dockerfile", "a", "a/b", "a/b/c.pyc", "a/x.md", "c.pyc"]),
        ("Dockerfile\n.dockerignore\n./a\na/../c.pyc", ["Dockerfile", "d.md"]),
    ],
)
def test_dockerignore_leaves_out_what_docker_would(tmp_path: Path, patterns: str, kept: list[str]) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("Dockerfile", "d.md", "c.pyc", "a/x.md", "a/b/c.pyc"):
        (tmp_path / name).write_text("")
    (tmp_path / ".dockerignore").write_text(patterns)
    assert [name for name in context_files(tmp_path) if name != ".dockerignore"] == kept
