"""Boxes of the docker provider, on a real engine."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from activities.sandboxes.docker import DockerProvider
from tests.activities.box_conformance import Bench, EndingProcesses, MakingBoxes, MovingFiles, RunningCommands
from tests.activities.docker_bench import build_image, close_provider, open_provider

pytestmark = pytest.mark.docker


@pytest_asyncio.fixture(scope="module", params=["root", "docker group"])
async def provider(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[DockerProvider]:
    """Twice: reaching files past the engine, and through it as a worker does that is not root."""
    provider = await open_provider(str(uuid.uuid4()), tmp_path_factory.mktemp("docker"))
    provider._is_root = request.param == "root"
    yield provider
    await close_provider(provider)


@pytest_asyncio.fixture
async def bench(provider: DockerProvider, tmp_path: Path) -> AsyncIterator[Bench]:
    image = await build_image(provider, tmp_path, "FROM evolve-test/debian:bookworm\nWORKDIR /app\n")
    bench = Bench(provider, image, provider.installation_id)
    yield bench
    await bench.clean()
    assert await provider.list(provider.installation_id) == []


class TestMakingDockerBoxes(MakingBoxes):
    pass


class TestRunningInDockerBoxes(RunningCommands):
    pass


class TestFilesOfDockerBoxes(MovingFiles):
    pass


class TestEndingProcessesOfDockerBoxes(EndingProcesses):
    pass
