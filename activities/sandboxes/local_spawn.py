"""Programs of this host started for boxes: no pipes, no inherited environment, waited for by pidfd.

posix_spawn rather than subprocess: descriptors land on the numbers that are asked for, nothing else is
inherited, and no code of ours runs between fork and exec in a threaded process.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from activities.sandboxes.base import ProcessKey, RunResult

# What our own programs find by name; a box's own environment never reaches a program of the host.
HOST_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_HIGH_FD = 200
_DEFAULT_SIGNALS = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
KILL_SEC = 30.0
STOPPED_CHECK_SEC = 0.25


def spawn(argv: Sequence[str], fds: Mapping[int, int]) -> int:
    """Start `argv[0]` (a path) in a session of its own with `fds` (its number → ours); returns its pid."""
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD) for number, fd in fds.items()}
    try:
        actions: list[tuple[int, ...]] = [(os.POSIX_SPAWN_CLOSE, fd) for fd in _inheritable()]
        actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in high.items()]
        return os.posix_spawn(
            argv[0],
            list(argv),
            {"PATH": HOST_PATH},
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,  # Python ignores PIPE and XFSZ, which children would inherit
        )
    finally:
        for fd in high.values():
            os.close(fd)


def _inheritable() -> list[int]:
    """Descriptors that whoever started this process left open for all its children."""
    found: list[int] = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the listing's own is closed by now
            if os.get_inheritable(int(name)):
                found.append(int(name))
    return found


@contextmanager
def memory_file(data: bytes = b"") -> Iterator[int]:
    """A file without a name. Unlike a pipe it holds nobody up, whoever keeps it open."""
    fd = os.memfd_create("evolve", os.MFD_CLOEXEC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


async def run_program(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    fds: Mapping[int, int] | None = None,
    timeout_sec: float = 30.0,
) -> RunResult:
    """Run a program to its end. Raises `TimeoutError` after killing its process group."""
    with memory_file(stdin) as given, memory_file() as out, memory_file() as err:
        pid = await asyncio.to_thread(spawn, argv, {0: given, 1: out, 2: err, **(fds or {})})
        try:
            await _wait_for_program(pid, timeout_sec)
        except BaseException:
            await _kill_group(pid)
            raise
        status = _reap(pid, 0)
        code = os.waitstatus_to_exitcode(status or 0)
        return RunResult(code if code >= 0 else 128 - code, _content(out), _content(err))


async def _wait_for_program(pid: int, timeout_sec: float) -> None:
    """Until it has ended. An nsenter whose command a sweep stopped stops itself too: it is let go on."""
    async with asyncio.timeout(timeout_sec):
        while True:
            with suppress(TimeoutError):
                await wait_for_end(pid, STOPPED_CHECK_SEC)
                return
            if _state_of(pid)[0] == b"T":
                os.kill(pid, signal.SIGCONT)


async def _kill_group(pid: int) -> None:
    """End a program and what it started, in a box's namespaces too, and wait for its own child."""
    below = children(pid)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _reap(pid, 0)
    for child in below:
        await wait_for_end(child, KILL_SEC)


def _content(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


def _reap(pid: int, options: int) -> int | None:
    try:
        found, status = os.waitpid(pid, options)
    except ChildProcessError:
        return None
    return status if found else None


async def wait_for_end(pid: int, timeout_sec: float) -> None:
    """Until the process has ended (it may stay a zombie). Raises `TimeoutError`."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: ended.done() or ended.set_result(None))
    try:
        await asyncio.wait_for(ended, timeout_sec)
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def process_key(pid: int) -> ProcessKey | None:
    """(pid, start ticks) of a process of this host that still runs."""
    state, start_ticks = _state_of(pid)
    return None if state in (b"", b"Z", b"X") else (pid, start_ticks)


def _state_of(pid: int) -> tuple[bytes, int]:
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return b"", 0


def parse_stat(line: bytes) -> tuple[bytes, int]:
    """State and start ticks (proc(5), fields 3 and 22). A name may hold anything, ") " too."""
    fields = line.rpartition(b") ")[2].split()
    return (fields[0], int(fields[19])) if len(fields) > 19 else (b"", 0)


def reap(key: ProcessKey) -> None:
    """Take the end of a child of this process, if it is one and has ended."""
    if _state_of(key[0]) == (b"Z", key[1]):
        _reap(key[0], os.WNOHANG)


def children(pid: int) -> list[int]:
    """Direct children; all threads of our long-lived programs are their main one."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def pid_one_above(pid: int) -> int:
    """The number of a namespace's first process as the namespace around its own knows it; 0 when gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    numbers = next(line.split()[1:] for line in lines if line.startswith("NSpid:"))
    return int(numbers[-2])


async def kill_process(key: ProcessKey, timeout_sec: float = KILL_SEC) -> None:
    """SIGKILL the very process that `key` names, and wait until it has ended."""
    try:
        fd = os.pidfd_open(key[0])
    except ProcessLookupError:
        return
    try:
        if process_key(key[0]) != key:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
    finally:
        os.close(fd)
    await wait_for_end(key[0], timeout_sec)
