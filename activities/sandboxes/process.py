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
    ReadsFilesFromOutside,
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
    "only_before",
    "shell_exports",
    "start",
    "status",
]

RUN_ROOT = "/.evolve/run"
RUNNER = files("activities.sandboxes").joinpath("runner.sh")
FIRST_POLL_SEC = 0.02
SLOWEST_POLL_SEC = 0.5
# The end of a command is seen late by at most this share of the time that it ran, where a look costs a
# millisecond; where it is a command in the box, by what the slower pace of such looks makes of it.
LATE_SHARE = 0.04


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
# guard; what other starts put beside it goes away, secrets with it. Two setsids, because the second one,
# called by a leader, forks: what a shell starts with `&` ignores INT and QUIT for good.
_LAUNCH = """
umask 077
dir=$1 staged=$2
shift 2
mkdir -p "$dir" || exit
if ! mkdir "$dir/claim" 2>/dev/null; then
    rm -rf "$staged"
    exit
fi
mv "$staged"/* "$dir" || exit
exec </dev/null >/dev/null 2>&1
if command -v setsid; then
    setsid setsid sh "$dir/runner.sh" "$dir" "$@"
else
    sh "$dir/runner.sh" "$dir" "$@" &
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
    options.append(f"evolve-end-{uuid.uuid4().hex}")
    launched = await box.run(["sh", "-c", _LAUNCH, "launch", run_dir, staged, *options, *spec.argv], cwd="/")
    if launched.exit_code != 0:
        told = launched.stderr.decode(errors="replace").strip()
        raise ProviderUnreachable(f"the runner of {spec.name!r} did not start: {told}")


def only_before(name: str, script: str) -> str:
    """`script` for a shell, made to do nothing once the process `name` has been started in its box."""
    return f"[ -e {_run_dir(name)}/claim ] || {{ {script}; }}"


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

    The output is what was written until the command ended; what it left running may say more. Raises
    `ExecChdirFailure` or `TaskError` when the working directory or the user does not exist, and what
    `Box` raises when the box is gone.
    """
    streams = [_Reader(stream, offsets.get(stream, 0)) for stream in STREAMS]
    clock = asyncio.get_running_loop().time
    began = waiting_since = clock()
    pause = FIRST_POLL_SEC
    while True:
        at: dict[Stream, int] = {each.stream: each.at for each in streams}
        snapshot = await look(box, _run_dir(name), at, MAX_CHUNK_BYTES)
        end = snapshot.end(name) if snapshot else None
        if snapshot and snapshot.was_started and not end:
            waiting_since = clock()
        is_late = clock() - waiting_since > BACKSTOP_SEC
        is_last = is_late or (end is not None and end.was_killed)
        chunks = [chunk for each in streams if snapshot and (chunk := each.take(snapshot, is_last=is_last))]
        for chunk in chunks:
            yield chunk
        if snapshot and any(each.is_behind(snapshot) for each in streams):
            continue
        if is_last or (end and all(each.is_over for each in streams)):
            yield end or ExitStatus(None, False, True, None, None)
            return
        slower = min(SLOWEST_POLL_SEC, pause * 1.5)
        if isinstance(box, ReadsFilesFromOutside):
            slower = min(slower, max(FIRST_POLL_SEC, LATE_SHARE * (clock() - began)))
        pause = max(FIRST_POLL_SEC, pause / 2) if chunks or end else slower
        await asyncio.sleep(pause)


class _Reader:
    """One stream, read up to the mark that the runner sets behind the command's output."""

    def __init__(self, stream: Stream, at: int) -> None:
        self.stream: Stream = stream
        self.at = at
        self.is_over = False
        self._read_to = at

    def take(self, snapshot: Snapshot, *, is_last: bool) -> Chunk | None:
        """The new bytes. What may be the beginning of the mark is left for the next time."""
        data = b"" if self.is_over else snapshot.data[self.stream]
        self._read_to = self.at + len(data)
        mark = snapshot.facts.mark if snapshot.facts else b"\0"
        found = data.find(mark)
        if found >= 0:
            self.is_over = True
            data = data[:found]
        elif not is_last:
            held = next((n for n in range(len(mark) - 1, 0, -1) if data.endswith(mark[:n])), 0)
            data = data[: len(data) - held]
        if not data:
            return None
        chunk = Chunk(self.stream, self.at, data)
        self.at += len(data)
        return chunk

    def is_behind(self, snapshot: Snapshot) -> bool:
        """Whether the file held more than was read."""
        return not self.is_over and self._read_to < snapshot.sizes[self.stream]
