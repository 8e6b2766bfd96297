"""A command in a box that outlives whoever started it: started detached, followed by byte offset.

`runner.sh` holds the command inside the box, with files for its output, its end and its own deadline.
Nothing here holds a pipe or a connection to it, so a worker that dies is replaced by one that follows
on from the offsets that the store knows. Needs a POSIX sh in the box.
"""

from __future__ import annotations

import asyncio
import io
import math
import re
import tarfile
import uuid
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from activities.sandboxes.base import Box, ProcessKey
from activities.sandboxes.process_poll import (
    BACKSTOP_SEC,
    MAX_CHUNK_BYTES,
    STREAMS,
    Chunk,
    ExitStatus,
    Running,
    Snapshot,
    Stream,
    look,
)
from domain.errors import ProviderUnreachable, TaskError

__all__ = [
    "Chunk",
    "ExitStatus",
    "ProcessSpec",
    "Running",
    "Stream",
    "baseline",
    "cancel",
    "follow",
    "shell_exports",
    "start",
    "status",
]

RUN_ROOT = "/.evolve/run"
RUNNER = files("activities.sandboxes").joinpath("runner.sh")
FIRST_POLL_SEC = 0.02
SLOWEST_POLL_SEC = 0.5


@dataclass(frozen=True)
class ProcessSpec:
    """What to run. `name` is unique in the box and safe as a file name; user and cwd default to the box's.

    `deadline_sec` None is no limit. At the limit the command's process group gets TERM, and
    `grace_sec` later (or when the command is gone) all that started since is killed.
    """

    name: str
    argv: Sequence[str]
    user: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: bytes | None = None
    deadline_sec: float | None = None
    grace_sec: float = 2.0


def shell_exports(env: Mapping[str, str]) -> bytes:
    """Lines for a shell to source; a value may hold anything but NUL. Raises `TaskError` by name."""
    lines: list[str] = []
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise TaskError(f"environment variable {name!r} cannot be set in a box", param=name)
        quoted = value.replace("'", "'\\''")
        lines.append(f"export {name}='{quoted}'\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


# $1 the run directory, $2 where its files were put, the rest for the runner. mkdir is the once-only
# guard; what another start put beside it goes away, secrets with it.
_LAUNCH = """
umask 077
dir=$1 staged=$2
shift 2
mkdir -p "$dir" || exit
if mkdir "$dir/claim" 2>/dev/null; then
    mv "$staged"/* "$dir" || exit
    $(command -v setsid) sh "$dir/runner.sh" "$dir" "$@" </dev/null >/dev/null 2>&1 &
fi
rm -rf "$dir".*
"""


async def start(box: Box, spec: ProcessSpec) -> None:
    """Start `spec` unless its name was started in this box before; then nothing happens.

    Values of `spec.env` and `spec.stdin` go by files that only root can read, never by argv.
    """
    run_dir = _run_dir(spec.name)
    staged = f"{run_dir}.{uuid.uuid4().hex}"
    await box.put_tar(staged, _staged_files(spec))
    limit = 0 if spec.deadline_sec is None else max(1, math.ceil(spec.deadline_sec))
    options = [str(limit), str(math.ceil(spec.grace_sec)), spec.user or "0", spec.cwd or box.workdir]
    launched = await box.run(["sh", "-c", _LAUNCH, "launch", run_dir, staged, *options, *spec.argv], cwd="/")
    if launched.exit_code != 0:
        told = launched.stderr.decode(errors="replace").strip()
        raise ProviderUnreachable(f"the runner of {spec.name!r} did not start: {told}")


def _run_dir(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"not a process name: {name!r}")
    return f"{RUN_ROOT}/{name}"


def _staged_files(spec: ProcessSpec) -> bytes:
    members = {"runner.sh": RUNNER.read_bytes(), "env": shell_exports(spec.env)}
    if spec.stdin is not None:
        members["in"] = spec.stdin
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        root = tarfile.TarInfo(".")
        root.type, root.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(root)
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            tar.addfile(member, io.BytesIO(data))
    return packed.getvalue()


async def baseline(box: Box) -> frozenset[ProcessKey]:
    """What runs in the box now; taken before the agent starts, and kept outside the box."""
    return frozenset((each.pid, each.start_ticks) for each in await box.processes())


async def cancel(box: Box, keep: Collection[ProcessKey]) -> int:
    """Kill all but `keep`, runners included, from outside; returns how many. `follow` then ends."""
    return await box.sweep(keep)


async def status(box: Box, name: str) -> Running | ExitStatus | None:
    """How the process stands; None when its name was never started in this box."""
    snapshot = await look(box, _run_dir(name), dict.fromkeys(STREAMS, 0), limit=0)
    return snapshot and (snapshot.end(name) or Running(snapshot.started_at))


async def follow(box: Box, name: str, offsets: Mapping[str, int]) -> AsyncIterator[Chunk | ExitStatus]:
    """All output from `offsets` on (absent is 0) as it comes, and at last the `ExitStatus`.

    Raises `ExecChdirFailure` or `TaskError` when the working directory or the user does not exist, and
    what `Box` raises when the box is gone. A stream that its own command made shorter (`>/dev/stderr`
    does) is followed on from its new beginning, under offsets that still only grow.
    """
    place = _Place(offsets)
    clock = asyncio.get_running_loop().time
    began, pause = clock(), FIRST_POLL_SEC
    while True:
        snapshot = await look(box, _run_dir(name), place.at, MAX_CHUNK_BYTES)
        chunks = place.take(snapshot) if snapshot else []
        for chunk in chunks:
            yield chunk
        if snapshot and place.is_behind(snapshot):
            continue
        end = snapshot.end(name) if snapshot else None
        if not end and not (snapshot and snapshot.was_started) and clock() - began > BACKSTOP_SEC:
            end = ExitStatus(None, False, True, None, None)
        if end:
            yield end
            return
        pause = max(FIRST_POLL_SEC, pause / 2) if chunks else min(SLOWEST_POLL_SEC, pause * 1.5)
        await asyncio.sleep(pause)


class _Place:
    """Where a reader stands: `at` in the files, plus what was cut off before as `_shift`."""

    def __init__(self, offsets: Mapping[str, int]) -> None:
        self.at: dict[Stream, int] = {stream: offsets.get(stream, 0) for stream in STREAMS}
        self._shift: dict[Stream, int] = dict.fromkeys(STREAMS, 0)

    def take(self, snapshot: Snapshot) -> list[Chunk]:
        """The new bytes, and the place after them."""
        chunks: list[Chunk] = []
        for stream in STREAMS:
            if snapshot.sizes[stream] < self.at[stream]:
                self._shift[stream] += self.at[stream]
                self.at[stream] = 0
            elif data := snapshot.data[stream]:
                chunks.append(Chunk(stream, self.at[stream] + self._shift[stream], data))
                self.at[stream] += len(data)
        return chunks

    def is_behind(self, snapshot: Snapshot) -> bool:
        """Whether the files held more than was taken."""
        return any(self.at[stream] < snapshot.sizes[stream] for stream in STREAMS)
