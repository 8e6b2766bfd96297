"""Harnesses as the activities use them: what they write into a box, and real runs with a scripted model."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from aiohttp import web

from activities.bundles import Bundles
from activities.harnesses.base import Harness, HarnessContext, ModelAccess
from activities.harnesses.home import resolve_home
from activities.npm_registry import NpmRegistry
from activities.sandboxes import process
from activities.sandboxes.base import Box, RunResult
from activities.sandboxes.process import Chunk, ExitStatus, ProcessSpec
from activities.sandboxes.relay import PORT as RELAY_PORT
from activities.traces.base import StreamParser, TraceEvent
from activities.traces.roster import PARSERS
from domain.arms import AgentArm
from domain.tasks import TaskFiles, parse_task
from gateway.scripted.script import Script
from gateway.scripted.server import ScriptedUpstream

BUNDLES = Path.home() / ".cache" / "evolve-test" / "bundles"
KEY = "evk-of-a-test"
RUN_SEC = 120.0


def context_of(
    harness: str,
    *,
    toml: str = "",
    instruction: str = "Create hello.txt.",
    model: str = "hello",
    effort: str | None = None,
    **place: Any,
) -> HarnessContext:
    """A context at the usual places of a box."""
    files = TaskFiles(instruction=instruction.encode())
    place.setdefault("bundle", "/opt/evolve")
    return HarnessContext(
        task=parse_task("hello", toml, files),
        task_dir=Path("/nowhere"),
        arm=AgentArm(name=harness, model_name=model, reasoning_effort=effort),
        access=ModelAccess("http://gateway.invalid:1", KEY, model, effort),
        **place,
    )


@dataclass
class WrittenBox:
    """Stands in for a box where only writing is looked at."""

    files: dict[str, str] = field(default_factory=dict[str, str])
    modes: dict[str, int] = field(default_factory=dict[str, int])
    commands: list[Sequence[str]] = field(default_factory=list[Sequence[str]])

    async def run(self, argv: Sequence[str], **_: Any) -> RunResult:
        self.commands.append(argv)
        return RunResult(0, b"", b"")

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None) -> None:
        self.files[path] = data.decode()
        self.modes[path] = mode


async def written_by(harness: Harness, context: HarnessContext) -> WrittenBox:
    box = WrittenBox()
    await harness.install(cast("Box", box), context)
    return box


@dataclass
class CountedModel:
    """A scripted model where the gateway would be; `calls` counts by path."""

    calls: Counter[str] = field(default_factory=Counter[str])

    @asynccontextmanager
    async def serving(self, turns: Sequence[Mapping[str, Any]], socket: Path) -> AsyncIterator[None]:
        app = ScriptedUpstream({"hello": Script.model_validate({"turns": turns})}).app()
        app.middlewares.append(self._count)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.UnixSite(runner, socket).start()
            yield
        finally:
            await runner.cleanup()

    @property
    def _count(self) -> Any:
        @web.middleware
        async def count(request: web.Request, handler: Any) -> web.StreamResponse:
            self.calls[request.path] += 1
            return await handler(request)

        return count


@dataclass(frozen=True)
class Ran:
    """An agent that has ended: its parsed trace, and the bytes it was parsed from."""

    exit_code: int | None
    events: list[TraceEvent]
    parser: StreamParser
    stdout: bytes
    stderr: bytes


async def put_in(harness: Harness, box: Box, context: HarnessContext, user: str | None) -> HarnessContext:
    """The harness in a box that has its bundle mounted; returns what its launch is made from."""
    bundles = Bundles(BUNDLES, NpmRegistry())
    version = harness.tested_version or ""
    bundle = harness.bundle(version)
    assert bundle is not None
    place = HarnessContext(
        task=context.task,
        task_dir=context.task_dir,
        arm=context.arm,
        access=ModelAccess(f"http://127.0.0.1:{RELAY_PORT}", KEY, context.model_access.model),
        version=version,
        user=user,
        home=await resolve_home(box, user),
        bundle=await bundles.open_in(box, await bundles.ensure(bundle), user),
        workdir=box.workdir,
    )
    await harness.install(box, place)
    return place


async def run_to_end(harness: Harness, box: Box, context: HarnessContext) -> Ran:
    launch = harness.launch(context)
    assert launch is not None
    assert harness.parser_name is not None
    spec = ProcessSpec(
        "agent",
        launch.argv,
        user=context.user,
        cwd=context.workdir,
        env=launch.env,
        stdin=launch.stdin,
        deadline_sec=RUN_SEC,
    )
    await process.start(box, spec)
    output = {"out": b"", "err": b""}
    status: ExitStatus | None = None
    async for each in process.follow(box, "agent", {}):
        if isinstance(each, Chunk):
            output[each.stream] += each.data
        else:
            status = each
    assert status is not None
    assert not status.is_deadline, output
    parser = PARSERS[harness.parser_name]()
    events = [event for line in output["out"].splitlines() for event in parser.feed(line)]
    events += parser.end(output["err"].decode(errors="replace")[-4000:])
    return Ran(status.exit_code, events, parser, output["out"], output["err"])
