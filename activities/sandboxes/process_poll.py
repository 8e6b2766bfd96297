"""One look at a detached process: whether it lives, how it ended, what is new in its output."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol, runtime_checkable

from activities.sandboxes.base import Box
from domain.errors import ExecChdirFailure, ProviderUnreachable, TaskError

Stream = Literal["out", "err"]
STREAMS: tuple[Stream, Stream] = ("out", "err")

MAX_CHUNK_BYTES = 8 * 1024 * 1024
# How long a start may take to show its pid, and a runner may be late at its own deadline, before it
# is taken for killed.
BACKSTOP_SEC = 15.0
RETRIES = 5
RETRY_SEC = 0.5
BLOCK_BYTES = 65536
NO_DIRECTORY = 64

# Prints pid, the command's and the runner's stat, rc, the uptime and the sizes, a line each, then the
# bytes of out; those of err go to stderr. What tells of life is read before rc, and rc before the
# output: so "gone and no rc" is final, and with an rc the output is complete. $1 is the directory, $2
# and $3 the first block of out and of err, $4 the count of both.
_POLL = """
cd "$1" 2>/dev/null || exit 64
line() {
    text='' part=''
    { while IFS= read -r part || [ -n "$part" ]; do text="$text$part"; done <"$1"; } 2>/dev/null
    echo "$text"
}
line pid
pid='' runner=''
{ read -r pid _ runner _ <pid; } 2>/dev/null
line "/proc/${pid:-none}/stat"
line "/proc/${runner:-none}/stat"
line rc
line /proc/uptime
[ -f out ] && [ -f err ] || exit 0
echo $(wc -c <out) $(wc -c <err)
dd if=out bs=65536 skip="$2" count="$4" 2>/dev/null || exit
exec 3>&2 2>/dev/null
dd if=err bs=65536 skip="$3" count="$4" >&3
"""


@dataclass(frozen=True)
class Chunk:
    """Output as it is in the file: `data` begins at byte `offset` of the stream."""

    stream: Stream
    offset: int
    data: bytes


@dataclass(frozen=True)
class Running:
    """`started_at` is None while it is only about to start."""

    started_at: datetime | None


@dataclass(frozen=True)
class ExitStatus:
    """`exit_code` is None when the command was killed together with its runner (`was_killed`).

    A signal is 128 + its number. Times are None where nothing told them.
    """

    exit_code: int | None
    is_deadline: bool
    was_killed: bool
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True)
class FileSlice:
    """At most `limit` bytes of a file from `offset` on."""

    path: str
    offset: int = 0
    limit: int = BLOCK_BYTES


@dataclass(frozen=True)
class FileState:
    """A file's size, and the bytes of the slice that was asked for."""

    size: int
    data: bytes


@runtime_checkable
class ReadsFilesFromOutside(Protocol):
    """A box whose files can be read, in the order given, without a command in it; None is absent."""

    async def read_files(self, slices: Sequence[FileSlice]) -> list[FileState | None]: ...


@dataclass(frozen=True)
class Facts:
    """The line that the runner writes when the command starts; times in seconds of the box's uptime.

    `mark` is what stands in each stream where the command has ended.
    """

    pid: str
    pid_start: str
    runner: str
    runner_start: str
    started: float
    limit_sec: int
    grace_sec: int
    mark: bytes

    @staticmethod
    def parse(line: bytes) -> Facts | None:
        words = line.decode().split()
        if len(words) != 8:
            return None
        pid, pid_start, runner, runner_start, started, limit, grace, mark = words
        times = (float(started), int(limit), int(grace))
        return Facts(pid, pid_start, runner, runner_start, *times, b"\0\1" + mark.encode())

    def lives(self, stat: bytes, runner_stat: bytes) -> bool:
        """Whether the command or its runner still runs, by the lines of their /proc/PID/stat."""
        return _lives(stat, self.pid_start) or _lives(runner_stat, self.runner_start)

    @property
    def overdue_at(self) -> float | None:
        """When the runner's own deadline has plainly failed: killed, or stopped, by the box's root."""
        return self.started + self.limit_sec + self.grace_sec + BACKSTOP_SEC if self.limit_sec else None


def _lives(stat: bytes, start_ticks: str) -> bool:
    fields = stat.rpartition(b") ")[2].split()
    return len(fields) > 19 and fields[0] not in (b"Z", b"X") and fields[19].decode() == start_ticks


@dataclass(frozen=True)
class Snapshot:
    """One look. `now` is this host's clock, `uptime` the box's."""

    facts: Facts | None
    is_alive: bool
    rc: str
    uptime: float
    now: datetime
    sizes: Mapping[Stream, int]
    data: Mapping[Stream, bytes]

    @property
    def was_started(self) -> bool:
        return self.facts is not None or bool(self.rc)

    @property
    def started_at(self) -> datetime | None:
        return self._at(self.facts.started) if self.facts else None

    def end(self, name: str) -> ExitStatus | None:
        """The end if there is one; raises what the runner found wrong before it started the command."""
        if self.rc:
            return self._reported_end(name)
        if self.facts is None:
            return None
        if not self.is_alive:
            return ExitStatus(None, False, True, self.started_at, self.now)
        if self.facts.overdue_at is not None and self.uptime > self.facts.overdue_at:
            return ExitStatus(None, True, True, self.started_at, self.now)
        return None

    def _reported_end(self, name: str) -> ExitStatus:
        code, why, finished = self.rc.split()
        if why == "chdir":
            raise ExecChdirFailure(f"the working directory of {name!r} does not exist in the box")
        if why == "user":
            raise TaskError(f"the user of {name!r} does not exist in the box, or cannot be used there")
        return ExitStatus(int(code), why == "deadline", False, self.started_at, self._at(float(finished)))

    def _at(self, uptime: float) -> datetime:
        return self.now - timedelta(seconds=self.uptime - uptime)


def make_snapshot(lines: Sequence[bytes], sizes: Sequence[int], data: Sequence[bytes]) -> Snapshot:
    """`lines` are pid, the two stats, rc and the uptime; `sizes` and `data` are of out and err."""
    told, stat, runner_stat, rc, uptime = lines
    facts = Facts.parse(told)
    return Snapshot(
        facts=facts,
        is_alive=facts is not None and facts.lives(stat, runner_stat),
        rc=rc.decode().strip(),
        uptime=float(uptime.split()[0]),
        now=datetime.now(UTC),
        sizes=dict(zip(STREAMS, sizes, strict=True)),
        data=dict(zip(STREAMS, data, strict=True)),
    )


async def look(box: Box, run_dir: str, at: Mapping[Stream, int], limit: int) -> Snapshot | None:
    """One round trip, at most `limit` new bytes a stream; None when the directory is not there."""
    if isinstance(box, ReadsFilesFromOutside):
        return await _look_from_outside(box, run_dir, at, limit)
    blocks = [str(at[stream] // BLOCK_BYTES) for stream in STREAMS]
    blocks.append(str(-(-limit // BLOCK_BYTES)))
    exit_code = None
    for _ in range(RETRIES):  # a sweep that runs at the same time cuts a poll down too
        polled = await box.run(["sh", "-c", _POLL, "poll", run_dir, *blocks], cwd="/")
        exit_code = polled.exit_code
        if exit_code == 0:
            return _parse(at, polled.stdout, polled.stderr)
        if exit_code == NO_DIRECTORY:
            return None
        await asyncio.sleep(RETRY_SEC)
    raise ProviderUnreachable(f"the box answers no poll of {run_dir} (exit code {exit_code})")


def _parse(at: Mapping[Stream, int], stdout: bytes, stderr: bytes) -> Snapshot:
    *lines, sizes, out = (*stdout.split(b"\n", 6), b"", b"")[:7]
    skipped = [at[stream] % BLOCK_BYTES for stream in STREAMS]
    data = [read[skip:] for read, skip in zip((out, stderr), skipped, strict=True)]
    return make_snapshot(lines, [int(each) for each in sizes.split()] or [0, 0], data)


async def _look_from_outside(
    box: ReadsFilesFromOutside, run_dir: str, at: Mapping[Stream, int], limit: int
) -> Snapshot | None:
    [told] = await box.read_files([FileSlice(f"{run_dir}/pid")])
    facts = Facts.parse(told.data) if told else None
    pids = (facts.pid, facts.runner) if facts else ()
    stats = [f"/proc/{pid}/stat" for pid in pids] or ["/proc/none", "/proc/none"]
    slices = [FileSlice(path) for path in (*stats, f"{run_dir}/rc", "/proc/uptime", f"{run_dir}/runner.sh")]
    slices += [FileSlice(f"{run_dir}/{stream}", at[stream], limit) for stream in STREAMS]
    *lines, runner, out, err = await box.read_files(slices)
    if runner is None:
        return None
    read = [each.data if each else b"" for each in (told, *lines)]
    outputs = [each or FileState(0, b"") for each in (out, err)]
    return make_snapshot(read, [each.size for each in outputs], [each.data for each in outputs])
