"""What an image's ENTRYPOINT starts in a box, and what it does not."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from activities.sandboxes.docker import DockerProvider
from activities.sandboxes.docker_box import DockerBox
from activities.sandboxes.docker_keepalive import service_of
from tests.activities.box_conformance import Bench, sh
from tests.activities.docker_bench import build_image, close_provider, open_provider

BASE = """\
FROM evolve-test/busybox:1
RUN echo worker:x:1234:1234::/:/bin/sh >>/etc/passwd && mkdir -m 777 /out
WORKDIR /app
"""
SERVE = """\
#!/bin/sh
echo "$(id -un) $GREETING $# $PWD" >/out/said
exec sleep 4321
"""
SERVICE = """\
ENV GREETING="hello there"
COPY serve /
USER worker
ENTRYPOINT ["/serve"]
CMD ["never", "given"]
"""


@pytest_asyncio.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DockerProvider]:
    provider = await open_provider(str(uuid.uuid4()), tmp_path_factory.mktemp("services"))
    yield provider
    await close_provider(provider)


@pytest_asyncio.fixture
async def boxes(provider: DockerProvider) -> AsyncIterator[list[str]]:
    made: list[str] = []
    yield made
    await asyncio.gather(*(provider.destroy(name) for name in made))


async def box_of(provider: DockerProvider, folder: Path, boxes: list[str], rest: str) -> DockerBox:
    (folder / "context").mkdir()
    (folder / "context" / "serve").write_text(SERVE)
    (folder / "context" / "serve").chmod(0o755)
    image = await build_image(provider, folder, BASE + rest)
    bench = Bench(provider, image, provider.installation_id, boxes)
    box = await bench.box(env={"DECLARED": "literal"})
    assert isinstance(box, DockerBox)
    return box


async def exit_code(box: DockerBox) -> int:
    while True:
        code = await box.service_exit_code()
        if code is not None:
            return code
        await asyncio.sleep(0.02)


@pytest.mark.docker
async def test_a_service_runs_before_the_agent_as_the_images_user(
    provider: DockerProvider, tmp_path: Path, boxes: list[str]
) -> None:
    box = await box_of(provider, tmp_path, boxes, SERVICE)
    await sh(box, "until [ -s /out/said ]; do :; done")
    assert await box.read("/out/said") == b"worker hello there 0 /app\n"
    assert "sleep 4321" in [each.command for each in await box.processes()]
    assert await box.service_exit_code() is None
    assert await sh(box, "id -un") == "root\n"


@pytest.mark.docker
async def test_a_service_that_dies_early_tells_its_code_and_the_box_goes_on(
    provider: DockerProvider, tmp_path: Path, boxes: list[str]
) -> None:
    box = await box_of(
        provider, tmp_path, boxes, 'ENTRYPOINT ["/bin/sh", "-c", "echo $DECLARED >/out/env; exit 42"]\n'
    )
    assert await exit_code(box) == 42
    assert await box.read("/out/env") == b"literal\n"
    again = await provider.attach(box.box_id)
    assert isinstance(again, DockerBox)
    assert await exit_code(again) == 42
    assert (await box.run(["true"])).exit_code == 0


@pytest.mark.docker
async def test_a_service_that_cannot_start_tells_127(
    provider: DockerProvider, tmp_path: Path, boxes: list[str]
) -> None:
    box = await box_of(provider, tmp_path, boxes, 'ENTRYPOINT ["/absent"]\n')
    assert await exit_code(box) == 127


@pytest.mark.docker
async def test_an_image_that_only_waits_starts_nothing(
    provider: DockerProvider, tmp_path: Path, boxes: list[str]
) -> None:
    rest = 'USER worker\nENTRYPOINT ["tail", "-f", "/dev/null"]\nCMD ["touch", "/out/cmd"]\n'
    box = await box_of(provider, tmp_path, boxes, rest)
    assert not [each for each in await box.processes() if "tail" in each.command.split()]
    assert await sh(box, "ls /out; id -un") == "root\n"
    assert await box.service_exit_code() is None


@pytest.mark.docker
async def test_the_box_outlives_what_agents_do_to_its_keeper(
    provider: DockerProvider, tmp_path: Path, boxes: list[str]
) -> None:
    box = await box_of(provider, tmp_path, boxes, "")
    for blow in ("-9 sleep", "-TERM sh", "-INT sh", "-HUP sh", "-TERM docker-init", "-9 sleep"):
        await box.run(["busybox", "killall", *blow.split()])
    await sh(box, "kill -9 1; kill 1")
    assert (await box.run(["true"])).exit_code == 0


@pytest.mark.docker
async def test_a_box_ends_by_itself_when_its_lifetime_is_over(
    provider: DockerProvider, tmp_path: Path, boxes: list[str]
) -> None:
    image = await build_image(provider, tmp_path, BASE)
    bench = Bench(provider, image, provider.installation_id, boxes)
    spec = bench.spec(lifetime_sec=1.0)
    await provider.create(spec)

    async def runs() -> bool:
        found = await provider.list(provider.installation_id)
        return any(each.is_running for each in found if each.tag == spec.tag)

    while await runs():  # noqa: ASYNC110 - the box ends in its own time
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "entrypoint",
    [
        None,
        [],
        ["sleep", "infinity"],
        ["/bin/sleep", "365d"],
        ["tail", "-f", "/dev/null"],
        ["cat"],
        ["/bin/bash"],
        ["bash", "-l"],
        ["/bin/sh", "-c"],
        ["/bin/sh", "-c", "sleep infinity"],
        ["sh", "-c", "tail -f /dev/null"],
        ["sh", "-c", "while true; do sleep 1000; done"],
        ["/usr/bin/tini", "--"],
        ["tini", "-g", "--", "sleep", "infinity"],
        ["dumb-init", "bash"],
    ],
)
def test_entrypoints_that_only_wait_start_nothing(entrypoint: list[str] | None) -> None:
    assert service_of(entrypoint) == []


@pytest.mark.parametrize(
    "entrypoint",
    [
        ["/entrypoint.sh"],
        ["/bin/sh", "-c", "service postgresql start; sleep infinity"],
        ["bash", "/start.sh"],
        ["tini", "--", "/entrypoint.sh"],
        ["tail", "-f", "/var/log/app.log"],
        ["python3", "-m", "http.server"],
        ["sh", "-c", "while true; do poll; sleep 1; done"],
    ],
)
def test_other_entrypoints_are_services(entrypoint: list[str]) -> None:
    assert service_of(entrypoint) == entrypoint
