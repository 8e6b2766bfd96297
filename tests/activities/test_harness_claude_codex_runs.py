"""The real claude and codex, fetched as bundles, against a scripted model where the gateway would be."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from activities.bundles import Bundles
from activities.harnesses.base import Harness, HarnessContext
from activities.harnesses.claude import ClaudeHarness
from activities.harnesses.codex import STREAM_RETRIES, CodexHarness
from activities.npm_registry import NpmRegistry
from activities.sandboxes.base import Box, ImageRef
from activities.sandboxes.docker import DockerProvider
from tests.activities.box_conformance import Bench, sh
from tests.activities.docker_bench import build_image, close_provider, open_provider
from tests.activities.harness_runs import BUNDLES, KEY, CountedModel, Ran, context_of, put_in, run_to_end
from tests.activities.local_bench import IS_ROOT, local_bench
from tests.activities.test_harness_claude import write_seed

HARNESSES: tuple[Harness, ...] = (ClaudeHarness(), CodexHarness())
each_harness = pytest.mark.parametrize("harness", HARNESSES, ids=lambda harness: harness.name)
WORK = {"text": "I will make it.", "shell": "echo hello > hello.txt"}
DONE = {"text": "All is done."}
REFUSED = {"error": {"status": 402, "message": "the spend cap of this trial is reached"}}
SERVER = """
import json, os, sys
for line in sys.stdin:
    call = json.loads(line)
    if "id" not in call:
        continue
    result = {}
    if call["method"] == "initialize":
        version = call["params"]["protocolVersion"]
        info = {"name": "lab", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif call["method"] == "tools/list":
        result = {"tools": [{"name": "echo", "description": "Echo.", "inputSchema": {"type": "object"}}]}
    elif call["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": "FOO is " + os.environ.get("FOO", "unset")}]}
    print(json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}), flush=True)
"""
TOML = """
[environment]
network_mode = "no-network"
skills_dir = "/skills"
[environment.env]
FOO = "bar"
[[environment.mcp_servers]]
name = "lab"
transport = "stdio"
command = "python3"
args = ["/server.py"]
"""
# glibc, and a user whose home is not to be written; musl, and root.
IMAGES = {
    "glibc-user": "FROM evolve-test/debian:bookworm\nRUN useradd -M -d /nonexistent worker\n"
    "WORKDIR /app\nRUN chown worker /app\n",
    "musl-root": "FROM evolve-test/busybox:1\nWORKDIR /app\n",
}
USERS = {"glibc-user": "worker", "musl-root": None}


@dataclass
class RecordedModel(CountedModel):
    """A scripted model that keeps what it was asked; its first `n_cuts` answers break off."""

    n_cuts: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def _count(self) -> Any:
        @web.middleware
        async def record(request: web.Request, handler: Any) -> web.StreamResponse:
            if request.method == "POST":
                self.bodies.append(json.loads(await request.read()))
            if request.method == "POST" and len(self.bodies) <= self.n_cuts:
                return await cut_off(request)
            return await handler(request)

        return record

    def asked(self, index: int) -> str:
        """A request, as text."""
        return json.dumps(self.bodies[index])


async def cut_off(request: web.Request) -> web.StreamResponse:
    """A stream that begins, and breaks before it says anything."""
    response = web.StreamResponse()
    response.content_type = "text/event-stream"
    await response.prepare(request)
    await response.write(b": begun\n\n")
    assert request.transport is not None
    request.transport.close()
    return response


@pytest_asyncio.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DockerProvider]:
    provider = await open_provider(str(uuid.uuid4()), tmp_path_factory.mktemp("claude-codex"))
    yield provider
    await close_provider(provider)


@pytest_asyncio.fixture(scope="module")
async def images(provider: DockerProvider, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ImageRef]:
    return {
        name: await build_image(provider, tmp_path_factory.mktemp(name), text)
        for name, text in IMAGES.items()
    }


@pytest_asyncio.fixture
async def made() -> AsyncIterator[list[Bench]]:
    benches: list[Bench] = []
    yield benches
    for bench in benches:
        await bench.clean()


async def box_with(harness: Harness, bench: Bench, env: Mapping[str, str] = MappingProxyType({})) -> Box:
    bundle = harness.bundle(harness.tested_version or "")
    assert bundle is not None
    folder = await Bundles(BUNDLES, NpmRegistry()).ensure(bundle)
    return await bench.box(mounts=(folder.mount,), env=env)


@dataclass(frozen=True)
class Scene:
    """A box of an image, a model that plays `turns`, and what the harness is asked."""

    provider: DockerProvider
    image: ImageRef
    made: list[Bench]
    user: str | None

    async def play(
        self,
        harness: Harness,
        context: HarnessContext,
        turns: Sequence[Mapping[str, Any]],
        setup: str = "true",
        model: RecordedModel | None = None,
    ) -> tuple[RecordedModel, Box, Ran]:
        model = model or RecordedModel()
        bench = Bench(self.provider, self.image, self.provider.installation_id)
        self.made.append(bench)
        async with model.serving(turns, self.provider.gateway_socket):
            box = await box_with(harness, bench, context.task.env_literals)
            await sh(box, setup)
            ran = await run_to_end(harness, box, await put_in(harness, box, context, self.user))
        return model, box, ran


@pytest.fixture(params=["glibc-user"])
def scene(
    request: pytest.FixtureRequest,
    provider: DockerProvider,
    images: dict[str, ImageRef],
    made: list[Bench],
) -> Scene:
    return Scene(provider, images[request.param], made, USERS[request.param])


def told(ran: Ran) -> str:
    return json.dumps([ran.exit_code, ran.stdout.decode()[-3000:], ran.stderr.decode()[-2000:]])


@pytest.mark.docker
@each_harness
@pytest.mark.parametrize("scene", IMAGES, indirect=True)
async def test_solves_a_task_with_its_own_shell(harness: Harness, scene: Scene) -> None:
    model, box, ran = await scene.play(harness, context_of(harness.name), [WORK, DONE])
    assert await sh(box, "cat /app/hello.txt") == "hello\n", told(ran)
    assert (ran.exit_code, ran.parser.report.error) == (0, None), told(ran)
    assert ran.parser.report.final_text == "All is done."
    assert len(model.bodies) == 2
    home = "/var/tmp/evolve-home" if scene.user else "/root"
    rules = harness.home_rules
    assert await sh(box, f"ls -A {home}/{rules.session_copies[0].source}")
    # The key is in no file that is kept.
    found = await box.run(["grep", "-rl", KEY, home])
    assert found.stdout == b""


@pytest.mark.docker
@each_harness
async def test_a_spent_cap_ends_it_at_once(harness: Harness, scene: Scene) -> None:
    model, box, ran = await scene.play(harness, context_of(harness.name), [WORK, REFUSED])
    # Codex takes a refusal for a cut and asks again, so often and for some seconds.
    assert len(model.bodies) == (2 if harness.name == "claude" else 2 + STREAM_RETRIES)
    assert await sh(box, "cat /app/hello.txt") == "hello\n"
    error = ran.parser.report.error
    assert error is not None, told(ran)
    assert "spend cap" in error.message, told(ran)
    assert ran.exit_code == 1


@pytest.mark.docker
@each_harness
async def test_a_stream_that_is_cut_is_asked_for_again(harness: Harness, scene: Scene) -> None:
    model = RecordedModel(n_cuts=1)
    _, box, ran = await scene.play(harness, context_of(harness.name), [WORK, DONE], model=model)
    assert ran.exit_code == 0, told(ran)
    assert await sh(box, "cat /app/hello.txt") == "hello\n"
    assert len(model.bodies) == 3


@pytest.mark.docker
@each_harness
async def test_mcp_servers_skills_and_no_web_for_a_task_without_network(
    harness: Harness, scene: Scene
) -> None:
    call = {"name": ["mcp__lab__echo", "echo"], "namespace": "mcp__lab", "arguments": {}}
    setup = "mkdir -p /skills/greet; printf -- '---\\nname: greet\\ndescription: Say hi.\\n---\\nHi.' "
    setup += f"> /skills/greet/SKILL.md; cat > /server.py <<'EOF_SERVER'\n{SERVER}\nEOF_SERVER\n"
    context = context_of(harness.name, toml=TOML)
    model, _, ran = await scene.play(harness, context, [{"tool_call": call}, DONE], setup)
    assert "FOO is bar" in model.asked(1), told(ran)
    assert "Say hi." in model.asked(0)
    assert "web_search" not in model.asked(0)
    assert "WebSearch" not in [tool.get("name") for tool in model.bodies[0]["tools"]]


@pytest.mark.docker
@each_harness
async def test_goes_on_with_a_tasks_trajectory(harness: Harness, scene: Scene, tmp_path: Path) -> None:
    context = context_of(harness.name, instruction="What was the word?")
    task = context.task.model_copy(update={"has_trajectory": True})
    context = replace(context, task=task, task_dir=write_seed(tmp_path))
    model, _, ran = await scene.play(harness, context, [DONE, DONE, DONE, DONE])
    assert ran.exit_code == 0, told(ran)
    asked = model.asked(0)
    words = ("The word is BANANA.", "I look.", "file.txt", "Noted.", "What was the word?")
    places = [asked.find(word) for word in words]
    assert places[0] > 0, told(ran)
    assert places == sorted(places), told(ran)


@each_harness
async def test_runs_in_a_local_box(harness: Harness, tmp_path: Path) -> None:
    model, user = RecordedModel(), "nobody" if IS_ROOT else None
    async with local_bench(tmp_path / "local") as bench:
        async with model.serving([WORK, DONE], tmp_path / "local" / "gw" / "gateway.sock"):
            box = await box_with(harness, bench)
            await sh(box, "chmod 777 .")
            ran = await run_to_end(harness, box, await put_in(harness, box, context_of(harness.name), user))
        assert ran.exit_code == 0, told(ran)
        assert await sh(box, "cat hello.txt") == "hello\n"
        assert len(model.bodies) == 2
