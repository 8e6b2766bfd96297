"""A tests-only provider for storms: fast boxes that misbehave on demand, and real local ones beside them.

A task whose Dockerfile starts from `scratch` gets a fast box (`tests/providers/fast.py`), any other a box of
the real local provider. Two more words for what a fast box acts: `wait N` makes a command take N seconds, and
an agent that was given a model's key talks to the gateway, as a process of its own (`model_agent.py`).
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from activities.harnesses.own import PREFIX
from activities.own_agents import PROCESS as AGENT_BUILD
from activities.sandboxes.base import Box, BoxListing, BoxSpec, ImageRef, ImageRequest, ProcessKey, RunResult
from activities.sandboxes.local import LocalProvider
from activities.sandboxes.process_poll import FileSlice, FileState
from activities.settings import WorkerSettings
from domain.agents import GATEWAY_API_KEY, MODEL
from domain.errors import (
    CapacityWait,
    DeleteRefused,
    ProviderCreateFailure,
    ProviderUnreachable,
    SandboxDeath,
    StreamDisconnect,
)
from tests.chaos import model_agent
from tests.chaos.mischief import Mischief
from tests.cli.stack_harness import is_alive
from tests.providers.fast import Barriers, FastBox, FastProvider
from tests.providers.faults import Faults

CALLS_OF_AN_AGENT = 3
LATE_SEC = 2.0
SLOW_SEC = 1.5
NEW_BOX_SEC = 3.0
_REAL = "real:"
STOPPED = "stopped"


class ChaoticBox(FastBox):
    """A fast box whose agent may be a real process, and whose provider misbehaves."""

    def __init__(self, root: Path, barriers: Barriers, faults: Faults, chaos: Chaos) -> None:
        super().__init__(root, barriers, faults)
        self._path = root
        self._chaos = chaos

    def _at(self, path: str) -> Path:
        if (self._path / STOPPED).exists():
            raise SandboxDeath(f"the box {self.box_id} is stopped")
        return super()._at(path)

    async def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_sec: float = 30.0,
    ) -> RunResult:
        await self._chaos.dawdle()
        result = await super().run(argv, user=user, cwd=cwd, env=env, stdin=stdin, timeout_sec=timeout_sec)
        is_launch = len(argv) > 4 and argv[3] == "launch"
        if is_launch and self._chaos.mischief.take("launch-silent"):
            raise ProviderUnreachable("the command's start was not answered")
        return result

    async def read_files(self, slices: Sequence[FileSlice]) -> list[FileState | None]:
        if self._chaos.mischief.take("stream-breaks"):
            raise StreamDisconnect("the stream broke off")
        if self._runs_something() and self._chaos.mischief.take("box-dies"):
            await self._chaos.destroy_box(self.box_id)
            raise SandboxDeath(f"the box {self.box_id} died")
        return await super().read_files(slices)

    def _runs_something(self) -> bool:
        runs = self._at("/.evolve/run").glob("*")
        return any((run / "started").exists() and not (run / "rc").exists() for run in runs)

    def _launch(self, name: str, staged: str, *, mark: str) -> None:
        run = self._at("/.evolve/run") / name
        is_new = not run.exists()
        super()._launch(name, staged, mark=mark)
        key = self._exports(name).get(GATEWAY_API_KEY)
        if is_new and key is not None:
            self._talk(run, key, self._exports(name)[MODEL])

    def _exports(self, name: str) -> dict[str, str]:
        path = self._path.parent.parent / "environments" / f"{self.box_id}.{name}"
        lines = path.read_text().splitlines() if path.exists() else []
        return dict(shlex.split(line)[1].split("=", 1) for line in lines)

    def _talk(self, run: Path, key: str, model: str) -> None:
        program = (sys.executable, "-S", "-E", model_agent.__file__)
        talker = subprocess.Popen(
            (*program, str(self._chaos.gateway_socket), str(CALLS_OF_AN_AGENT), str(run / "talked")),
            env={"CHAOS_KEY": key, "CHAOS_MODEL": model},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        (run / "talker").write_text(str(talker.pid))

    def _finish(self, run: Path) -> None:
        if run.name == AGENT_BUILD:
            program = self._at(f"{PREFIX}/bin/talk")
            program.parent.mkdir(parents=True, exist_ok=True)
            program.touch(mode=0o755)
            self._end(run, 0)
        elif (run / "talker").exists():
            self._finish_talk(run)
        elif time.time() - (run / "started").stat().st_mtime >= self._duration_sec(run):
            super()._finish(run)

    def _finish_talk(self, run: Path) -> None:
        if (run / "talked").exists():
            self._at("/app").mkdir(exist_ok=True)
            self._at("/app/solved").touch()
            self._end(run, 0, (run / "talked").read_text())
        elif not is_alive(int((run / "talker").read_text())):
            self._end(run, 137)

    def _duration_sec(self, run: Path) -> float:
        lines = self._script(run).splitlines()
        return sum(float(line.split()[1]) for line in lines if line.startswith("wait "))

    async def sweep(self, keep: Collection[ProcessKey]) -> int:
        end_talkers(self._path)
        return await super().sweep(keep)


class Chaos:
    """What boxes know of their provider."""

    def __init__(self, provider: ChaoticProvider, settings: WorkerSettings) -> None:
        self._provider = provider
        self.mischief = Mischief(settings.state_dir / "mischief")
        self.gateway_socket = settings.gateway_socket

    async def destroy_box(self, box_id: str) -> None:
        await self._provider.remove(box_id)

    async def dawdle(self) -> None:
        """Be slow, when that is planned."""
        if self.mischief.take("slow"):
            await asyncio.sleep(SLOW_SEC)


class ChaoticProvider(FastProvider):
    """Answers to `local`, as both providers behind it do."""

    def __init__(self, settings: WorkerSettings) -> None:
        super().__init__(settings.state_dir / "fast")
        self._real = LocalProvider(settings.state_dir, settings.gateway_socket)
        self._real_boxes = settings.state_dir / "boxes"
        self._chaos = Chaos(self, settings)
        self._late: set[asyncio.Task[Box]] = set()

    async def ensure_image(self, request: ImageRequest) -> ImageRef:
        dockerfile = request.context_dir / "Dockerfile"
        if dockerfile.read_text().startswith(("FROM scratch", "FROM python")):
            return await super().ensure_image(request)
        image = await self._real.ensure_image(request)
        return replace(image, handle=_REAL + image.handle)

    async def create(self, spec: BoxSpec) -> Box:
        mischief = self._chaos.mischief
        await self._chaos.dawdle()
        if mischief.take("create-fails"):
            raise ProviderCreateFailure("the provider makes no boxes today")
        if mischief.take("no-capacity"):
            raise CapacityWait("429: no room")
        if mischief.take("create-late"):
            making = asyncio.create_task(self._make_late(spec))
            self._late.add(making)
            making.add_done_callback(self._late.discard)
            return await asyncio.shield(making)
        box = await self._make(spec)
        if mischief.take("create-silent"):
            raise ProviderUnreachable("the create was not answered")
        return box

    async def _make_late(self, spec: BoxSpec) -> Box:
        await asyncio.sleep(LATE_SEC)
        return await self._make(spec)

    async def _make(self, spec: BoxSpec) -> Box:
        if spec.image.handle.startswith(_REAL):
            image = replace(spec.image, handle=spec.image.handle.removeprefix(_REAL))
            return await self._real.create(replace(spec, image=image))
        await super().create(spec)
        return self._box(spec.tag.name)

    def _box(self, box_id: str) -> ChaoticBox:
        return ChaoticBox(self.boxes / box_id, self.barriers, self.faults, self._chaos)

    async def attach(self, box_id: str) -> Box:
        if self._is_real(box_id):
            return await self._real.attach(box_id)
        await super().attach(box_id)
        if self._is_stopped(box_id):
            raise SandboxDeath(f"the box {box_id} is stopped")
        return self._box(box_id)

    def _is_real(self, box_id: str) -> bool:
        return (self._real_boxes / box_id).exists()

    async def list(self, installation_id: str) -> list[BoxListing]:
        listings = await super().list(installation_id)
        if listings and self._chaos.mischief.take("list-late"):
            listings = [listing for listing in listings if not self._is_new(listing.box_id)]
        return [*listings, *await self._real.list(installation_id)]

    async def clear_litter(self, *, is_dry: bool) -> list[str]:
        fast = await super().clear_litter(is_dry=is_dry)
        return [*fast, *await self._real.clear_litter(is_dry=is_dry)]

    def _is_new(self, box_id: str) -> bool:
        tag = self.boxes / box_id / "tag.json"
        return tag.exists() and time.time() - tag.stat().st_mtime < NEW_BOX_SEC

    async def destroy(self, box_id: str) -> None:
        await self._chaos.dawdle()
        if self._chaos.mischief.take("destroy-fails"):
            raise ProviderUnreachable("the destroy was not answered")
        if self._is_there(box_id) and self._chaos.mischief.refuses(box_id):
            raise DeleteRefused(f"403: {box_id} may not be destroyed")
        await self.remove(box_id)

    def _is_there(self, box_id: str) -> bool:
        return self._is_real(box_id) or (self.boxes / box_id).exists()

    async def stop(self, box_id: str) -> None:
        if self._is_real(box_id):
            await self._real.stop(box_id)
            return
        end_talkers(self.boxes / box_id)
        with suppress(FileNotFoundError):  # it was not destroyed by us, and is gone
            await super().stop(box_id)

    async def remove(self, box_id: str) -> None:
        """The box's end, without any mischief."""
        if self._is_real(box_id):
            await self._real.destroy(box_id)
            return
        end_talkers(self.boxes / box_id)
        await super().destroy(box_id)

    async def close(self) -> None:
        await self._real.close()


def end_talkers(box: Path) -> None:
    """Kill the agents of a fast box."""
    for path in box.glob("fs/.evolve/run/*/talker"):
        pid = int(path.read_text() or 0)
        if pid and is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def make_provider(settings: WorkerSettings, installation_id: str) -> ChaoticProvider:
    """The plugin's factory: `EVOLVE_PROVIDER_PLUGINS=tests.chaos.chaotic_provider:make_provider`."""
    return ChaoticProvider(settings)
