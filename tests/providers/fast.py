"""A tests-only sandbox provider: boxes are directories, commands are not run but acted by this file.

It is no sandbox. It exists so that thousands of trials can pass through every phase in seconds, and so
that a test can hold a trial in a phase (a *barrier*) and kill what it likes. State is on disk: a box
outlives the worker that made it, as a real one does. What is to go wrong is written beforehand too: see
`faults.py`.

What a "command" does is written in the task: `solution/solve.sh` and `tests/test.sh` are lists of the
words `reward X`, `reward-if-solved X`, `reward-if FILE X`, `exit N`, `print TEXT`, `solve`, `make FILE`,
`delete FILE`, `look FILE` (prints whether it is there), one a line (other lines are ignored). So are
`pre_artifacts.sh`, collect hooks and a step's `setup.sh`.

The barriers are `build`, `create` and `create-verifier` (before a box is made), `boot` (it is made),
`install`, `agent`, `collect-N`, `verifier` and `persist`; of step N `setup-N`, `agent-N`, `verifier-N`. A
task with a word in `environment/barrier` is also held by `NAME.WORD`.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import tarfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from activities.sandboxes.base import (
    Box,
    BoxListing,
    BoxSpec,
    BoxTag,
    ImageListing,
    ImageRef,
    ImageRequest,
    NetworkMode,
    ProcessInfo,
    ProcessKey,
    RunResult,
)
from activities.sandboxes.process_poll import FileSlice, FileState
from activities.settings import WorkerSettings
from domain.errors import SandboxDeath
from tests.providers.faults import Faults
from tests.waiting import eventually


class Barriers:
    """`hold(name)` makes whoever reaches the barrier wait; `reached(name)` tells that somebody did.

    A barrier is crossed under a name and the task's word (see above): either of the two holds it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def hold(self, name: str) -> None:
        (self._root / f"{name}.hold").touch()

    def release(self, name: str) -> None:
        (self._root / f"{name}.hold").unlink(missing_ok=True)

    def reached(self, name: str) -> bool:
        return (self._root / f"{name}.reached").exists()

    def forget(self, name: str) -> None:
        """As if nobody had reached it yet."""
        (self._root / f"{name}.reached").unlink(missing_ok=True)

    def is_held(self, name: str, word: str = "") -> bool:
        held = [each for each in (name, f"{name}.{word}") if (self._root / f"{each}.hold").exists()]
        for each in held:
            (self._root / f"{each}.reached").touch()
        return bool(held)

    async def cross(self, name: str, word: str = "") -> None:
        await eventually(lambda: not self.is_held(name, word))


class FastBox:
    """A directory that answers like a box."""

    def __init__(self, root: Path, barriers: Barriers, faults: Faults) -> None:
        self._root = root
        self._barriers = barriers
        self._faults = faults

    @property
    def box_id(self) -> str:
        return self._root.name

    @property
    def workdir(self) -> str:
        return "/app"

    @property
    def _word(self) -> str:
        return _text(self._root / "barrier")

    def _at(self, path: str) -> Path:
        if not self._root.exists():
            raise SandboxDeath(f"no box {self.box_id}")
        return self._root / "fs" / path.lstrip("/")

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
        self._at("/")
        if len(argv) > 4 and argv[3] == "launch":
            self._launch(Path(argv[4]).name, Path(argv[5]).name, mark=argv[10])
            self._at(f"{argv[4]}/command").write_text(argv[-1])
            self._faults.meet(f"{Path(argv[4]).name}-launched")
        elif len(argv) > 4 and argv[3] == "lay-out":
            self._lay_out(argv[4], before=_guard(argv[2]))
        elif len(argv) > 4 and argv[3] == "lay-workdir":
            self._lay_workdir(argv[4], before=_guard(argv[2]))
        elif len(argv) > 3 and argv[3] == "forget":
            self._forget_tests()
        elif len(argv) > 4 and argv[3] == "healthcheck":
            return self._check(argv[4])
        return RunResult(0, b"", b"")

    def _check(self, command: str) -> RunResult:
        """`unhealthy N` fails N times in this box; every probe is counted in `probes` beside the boxes."""
        with (self._root.parent.parent / "probes").open("a") as log:
            log.write(f"{self.box_id}\n")
        probed = self._root / "probed"
        n_probes = len(probed.read_text()) if probed.exists() else 0
        probed.write_text("." * (n_probes + 1))
        return RunResult(int(n_probes < int(command.split()[1])), b"", b"not yet")

    def _forget_tests(self) -> None:
        for path in ("/tests", "/logs/verifier"):
            shutil.rmtree(self._at(path), ignore_errors=True)

    def _lay_workdir(self, staged: str, before: str) -> None:
        if not self._at(before).exists():
            shutil.copytree(self._at(staged), self._at(self.workdir), dirs_exist_ok=True)
        shutil.rmtree(self._at(staged), ignore_errors=True)

    def _lay_out(self, staged: str, before: str) -> None:
        if not self._at(before).exists():
            self._forget_tests()
            self._at("/logs/verifier").mkdir(parents=True)
            self._at(staged).rename(self._at("/tests"))
        shutil.rmtree(self._at(staged), ignore_errors=True)

    def _launch(self, name: str, staged: str, *, mark: str) -> None:
        runs = self._at("/.evolve/run")
        try:
            (runs / name).mkdir(parents=True)
            self._remember(name, (runs / staged / "env").read_text())
            if (runs / staged / "in").exists():
                (runs / staged / "in").rename(runs / name / "in")
        except FileExistsError:
            return
        finally:
            shutil.rmtree(runs / staged, ignore_errors=True)
        with (self._root.parent.parent / "executions").open("a") as log:
            log.write(f"{self.box_id} {name}\n")
        (runs / name / "started").write_text(mark)

    def _remember(self, name: str, exports: str) -> None:
        environments = self._root.parent.parent / "environments"
        environments.mkdir(exist_ok=True)
        (environments / f"{self.box_id}.{name}").write_text(exports)

    def _finish(self, run: Path) -> None:
        """Act the command, once its barrier is open."""
        code, printed = 0, ""
        for line in self._script(run).splitlines():
            word, _, rest = line.partition(" ")
            if word == "reward" or (word == "reward-if-solved" and self._at("/app/solved").exists()):
                self._at("/logs/verifier/reward.txt").write_text(rest)
            elif word == "print":
                printed += rest + "\n"
            elif word == "exit":
                code = int(rest)
            elif word == "solve":
                self._make("/app/solved")
            elif word == "look":
                printed += f"{rest} is{'' if self._at(rest).exists() else ' not'} there\n"
            elif word == "make":
                self._make(rest)
            elif word == "delete":
                self._at(rest).unlink(missing_ok=True)
            elif word == "reward-if" and self._at(rest.split()[0]).exists():
                self._at("/logs/verifier/reward.txt").write_text(rest.split()[1])
        self._end(run, code, printed)

    def _script(self, run: Path) -> str:
        """The lines that a command is acted by: of a task's file, of its stdin, or the command itself."""
        if run.name.startswith("collect-"):
            return _text(run / "command")
        if run.name.startswith("pre-artifacts"):
            return _text(run / "in")
        files = {"agent": "/solution/solve.sh", "setup": "/app/setup.sh", "verifier": "/tests/test.sh"}
        return _text(self._at(files[run.name.partition("-")[0]]))

    def _make(self, path: str) -> None:
        self._at(path).parent.mkdir(parents=True, exist_ok=True)
        self._at(path).touch()

    def _end(self, run: Path, code: int, printed: str = "") -> None:
        """The runner's files, in the runner's order."""
        mark = (run / "started").read_text()
        (run / "out").write_text(f"{printed}\0\1{mark}")
        (run / "err").write_text(f"\0\1{mark}")
        (run / "pid").write_text(f"2 2 2 2 1.0 0 0 {mark}")
        (run / "rc.partial").write_text(f"{code} exit 1.0")
        (run / "rc.partial").rename(run / "rc")

    async def read_files(self, slices: Sequence[FileSlice]) -> list[FileState | None]:
        return [self._slice(each) for each in slices]

    def _slice(self, each: FileSlice) -> FileState | None:
        if each.path == "/proc/uptime":
            return FileState(4, b"9.0 9.0")
        path = self._at(each.path)
        run = path.parent
        self._faults.meet(run.name)
        is_running = (run / "started").exists() and not (run / "rc").exists()
        if is_running and not self._barriers.is_held(run.name, self._word):
            self._finish(run)
        if path.name == "runner.sh" and (run / "started").exists():
            return FileState(0, b"")
        if not path.is_file():
            return None
        data = path.read_bytes()
        return FileState(len(data), data[each.offset : each.offset + each.limit])

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        data = self._at(path).read_bytes()
        return data[offset : None if limit is None else offset + limit]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None) -> None:
        self._at(path).parent.mkdir(parents=True, exist_ok=True)
        self._at(path).write_bytes(data)

    async def put_tar(self, path: str, tar: bytes) -> None:
        if path == "/solution":
            await self._barriers.cross("install", self._word)
        target = self._at(path)
        target.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(tar)) as packed:
            packed.extractall(target, filter="data")

    async def get_tar(self, path: str) -> AsyncIterator[bytes]:
        source = self._at(path)
        if not source.exists():
            raise FileNotFoundError(path)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(source, arcname=".")
        yield packed.getvalue()

    async def set_network(self, mode: NetworkMode) -> None:
        self._at("/")

    async def processes(self) -> list[ProcessInfo]:
        self._at("/")
        return [ProcessInfo(1, 1, "init")]

    async def service_exit_code(self) -> int | None:
        self._at("/")
        return None

    async def sweep(self, keep: Collection[ProcessKey]) -> int:
        for run in self._at("/.evolve/run").glob("*"):
            if (run / "started").exists() and not (run / "rc").exists():
                self._end(run, 137)
        return 0


class FastProvider:
    """Answers to the name `local`, so that jobs can be created for it."""

    name = "local"

    def __init__(self, root: Path) -> None:
        self.boxes = root / "boxes"
        self.boxes.mkdir(parents=True, exist_ok=True)
        self._executions = root / "executions"
        self.barriers = Barriers(root / "barriers")
        self.faults = Faults(root / "faults")

    def executions(self) -> list[str]:
        """The names of the commands that were started, in whatever box, in their order."""
        text = _text(self._executions)
        return [line.split()[1] for line in text.splitlines()]

    async def ensure_image(self, request: ImageRequest) -> ImageRef:
        word = _text(request.context_dir / "barrier")
        await self.barriers.cross("build", word)
        return ImageRef(id=request.context_digest, handle=word)

    async def create(self, spec: BoxSpec) -> Box:
        word = spec.image.handle
        await self.barriers.cross("create" if spec.tag.role == "agent" else "create-verifier", word)
        self.faults.meet("create")
        root = self.boxes / spec.tag.name
        root.mkdir(exist_ok=True)
        (root / "barrier").write_text(word)
        (root / "tag.json").write_text(json.dumps(asdict(spec.tag)))
        (root / "fs").mkdir(exist_ok=True)
        await self.barriers.cross("boot", word)
        return FastBox(root, self.barriers, self.faults)

    async def attach(self, box_id: str) -> Box:
        if not (self.boxes / box_id).exists():
            raise SandboxDeath(f"no box {box_id}")
        return FastBox(self.boxes / box_id, self.barriers, self.faults)

    def environment(self, box_id: str, name: str) -> dict[str, str]:
        """The variables that a process of a box was started with, also once the box is gone."""
        lines = (self.boxes.parent / "environments" / f"{box_id}.{name}").read_text().splitlines()
        pairs = (shlex.split(line)[1].partition("=") for line in lines)
        return {key: value for key, _, value in pairs}

    @property
    def disks(self) -> tuple[Path, ...]:
        return (self.boxes,)

    async def list(self, installation_id: str) -> list[BoxListing]:
        found = [(BoxTag(**json.loads(path.read_text())), path) for path in self.boxes.glob("*/tag.json")]
        return [
            BoxListing(tag.name, tag, not self._is_stopped(tag.name), _time_of(path))
            for tag, path in found
            if tag.installation_id == installation_id
        ]

    def _is_stopped(self, box_id: str) -> bool:
        return (self.boxes / box_id / "stopped").exists()

    async def stop(self, box_id: str) -> None:
        (self.boxes / box_id / "stopped").touch()

    async def clear_litter(self, *, is_dry: bool) -> list[str]:
        """What dead processes were removing."""
        found = [path for path in self.boxes.glob(".*.*") if not _lives(path.suffix.removeprefix("."))]
        if not is_dry:
            for path in found:
                shutil.rmtree(path, ignore_errors=True)
        return [f"trash {path.name}" for path in found]

    async def images(self) -> list[ImageListing]:
        """One for each file in `images` beside the boxes: as large, and as old."""
        found = sorted((self.boxes.parent / "images").glob("*"))
        return [
            ImageListing(path.name, f"fast:{path.name}", path.stat().st_size, _time_of(path))
            for path in found
        ]

    async def remove_image(self, name: str) -> bool:
        (self.boxes.parent / "images" / name).unlink(missing_ok=True)
        return True

    async def destroy(self, box_id: str) -> None:
        self.faults.meet("destroy")
        await self.barriers.cross("persist", _text(self.boxes / box_id / "barrier"))
        gone = self.boxes / f".{box_id}.{os.getpid()}"
        try:
            (self.boxes / box_id).rename(gone)
        except FileNotFoundError:
            return
        shutil.rmtree(gone, ignore_errors=True)

    async def close(self) -> None:
        return


def _lives(pid: str) -> bool:
    return Path("/proc", pid).exists()


def _time_of(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _guard(script: str) -> str:
    """The folder of the process before whose start alone a script acts (`process.only_before`)."""
    found = re.search(r"\[ -e (\S+)/claim \]", script)
    assert found is not None
    return found[1]


def make_provider(settings: WorkerSettings, installation_id: str) -> FastProvider:
    """The plugin's factory: `EVOLVE_PROVIDER_PLUGINS=tests.providers.fast:make_provider`."""
    return FastProvider(settings.state_dir / "fast")
