"""The real CLIs, fetched as bundles, against a scripted model: in images that hold nothing for them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from activities.bundles import Bundles
from activities.harnesses.base import Harness
from activities.harnesses.droid import DroidHarness
from activities.harnesses.gemini import GeminiHarness
from activities.harnesses.kimi import KimiHarness
from activities.harnesses.opencode import OpencodeHarness
from activities.harnesses.qwen import QwenHarness
from activities.npm_registry import NpmRegistry
from activities.sandboxes.base import Box, ImageRef
from activities.sandboxes.docker import DockerProvider
from tests.activities.box_conformance import Bench, sh
from tests.activities.docker_bench import build_image, close_provider, open_provider
from tests.activities.harness_runs import BUNDLES, CountedModel, Ran, context_of, put_in, run_to_end

pytestmark = pytest.mark.docker

HARNESSES: tuple[Harness, ...] = (
    GeminiHarness(),
    QwenHarness(),
    KimiHarness(),
    OpencodeHarness(),
    DroidHarness(),
)
# glibc, and a user whose home is not to be written; musl, and root.
IMAGES = {
    "glibc-user": "FROM evolve-test/debian:bookworm\nRUN useradd -M -d /nonexistent worker\n"
    "WORKDIR /app\nRUN chown worker /app\n",
    "musl-root": "FROM evolve-test/busybox:1\nWORKDIR /app\n",
}
USERS = {"glibc-user": "worker", "musl-root": None}
WORK = {"text": "I will make it.", "shell": "echo hello > hello.txt"}
REFUSED = {"error": {"status": 402, "message": "evolve: the spend cap of this trial is reached"}}


@pytest_asyncio.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DockerProvider]:
    folder = tmp_path_factory.mktemp("harnesses")
    provider = await open_provider(str(uuid.uuid4()), folder)
    yield provider
    await close_provider(provider)


@pytest_asyncio.fixture(scope="module")
async def images(provider: DockerProvider, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ImageRef]:
    return {
        name: await build_image(provider, tmp_path_factory.mktemp(name), text)
        for name, text in IMAGES.items()
    }


@pytest_asyncio.fixture
async def boxes(provider: DockerProvider) -> AsyncIterator[list[str]]:
    made: list[str] = []
    yield made
    await asyncio.gather(*(provider.destroy(name) for name in made))


async def box_with(harness: Harness, provider: DockerProvider, image: ImageRef, boxes: list[str]) -> Box:
    bundle = harness.bundle(harness.tested_version or "")
    assert bundle is not None
    folder = await Bundles(BUNDLES, NpmRegistry()).ensure(bundle)
    return await Bench(provider, image, provider.installation_id, boxes).box(mounts=(folder.mount,))


@pytest.mark.full
@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.name)
async def test_solves_a_task_with_its_own_shell(
    harness: Harness, image: str, provider: DockerProvider, images: dict[str, ImageRef], boxes: list[str]
) -> None:
    model, user = CountedModel(), USERS[image]
    async with model.serving([WORK, {"text": "All is done."}], provider.gateway_socket):
        box = await box_with(harness, provider, images[image], boxes)
        context = await put_in(harness, box, context_of(harness.name), user)
        ran = await run_to_end(harness, box, context)
    assert (await box.run(["cat", "/app/hello.txt"])).stdout == b"hello\n", told(ran)
    assert ran.exit_code == 0, told(ran)
    assert ran.parser.report.error is None, told(ran)
    assert ran.parser.report.final_text == "All is done."
    assert sum(model.calls.values()) == 2, model.calls
    kinds = [event.type for event in ran.events]
    assert {"tool_call", "agent_message_chunk"} <= set(kinds)
    assert await sh(box, f"ls -A {context.home}/{harness.home_rules.captured[0]}")


@pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.name)
async def test_a_spent_cap_ends_it_at_once(
    harness: Harness, provider: DockerProvider, images: dict[str, ImageRef], boxes: list[str]
) -> None:
    model = CountedModel()
    async with model.serving([WORK, REFUSED], provider.gateway_socket):
        box = await box_with(harness, provider, images["glibc-user"], boxes)
        context = await put_in(harness, box, context_of(harness.name), "worker")
        ran = await run_to_end(harness, box, context)
    assert sum(model.calls.values()) == 2, model.calls
    assert (await box.run(["cat", "/app/hello.txt"])).stdout == b"hello\n", told(ran)
    error = ran.parser.report.error
    assert error is not None, told(ran)
    assert "spend cap" in error.message


def told(ran: Ran) -> str:
    return json.dumps([ran.exit_code, ran.stdout.decode()[-2000:], ran.stderr.decode()[-2000:]])
