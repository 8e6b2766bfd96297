"""The processes of a container, read from this machine's /proc: no program of the box is asked."""

from __future__ import annotations

from pathlib import Path

from activities.sandboxes.base import ProcessInfo

CGROUPS = Path("/sys/fs/cgroup")
OVER = ("Z", "X")
# To read a command line the kernel waits for the process's memory lock, which forks hold: minutes each in
# a fork bomb. So a box with more processes than this has only their short names told.
MAX_COMMAND_LINES = 256
# The box's init and what keeps it up: the oldest, and they do not fork.
OWN_PROCESSES = 2


def container_processes(init_pid: int) -> list[ProcessInfo]:
    """Those that live in the cgroup of `init_pid`, by the pids they have inside.

    Raises `ProcessLookupError` when that process is over.
    """
    try:
        pids = _cgroup_procs(Path(f"/proc/{init_pid}/cgroup").read_text()).read_text().split()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {init_pid} is over") from error
    first, rest = (
        (pids, []) if len(pids) <= MAX_COMMAND_LINES else (pids[:OWN_PROCESSES], pids[OWN_PROCESSES:])
    )
    found = [_read(Path("/proc") / pid, with_command=True) for pid in first]
    found += [_read(Path("/proc") / pid, with_command=False) for pid in rest]
    return sorted((each for each in found if each), key=lambda each: each.pid)


def _cgroup_procs(cgroup: str) -> Path:
    """The file that lists its members (cgroups(7)): the pids controller of v1, or the one tree of v2."""
    paths = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in cgroup.splitlines()}
    root = CGROUPS / "pids" if "pids" in paths else CGROUPS
    return root / paths.get("pids", paths[""]).lstrip("/") / "cgroup.procs"


def _read(proc: Path, *, with_command: bool) -> ProcessInfo | None:
    try:
        status = (proc / "status").read_text().splitlines()
        stat = (proc / "stat").read_text(encoding="utf-8", errors="replace")
        command = _command(proc) if with_command else ""
    except (FileNotFoundError, ProcessLookupError):
        return None
    before, _, after = stat.rpartition(") ")
    fields = after.split()
    if fields[0] in OVER:
        return None
    inner_pid = next(int(line.split()[-1]) for line in status if line.startswith("NSpid:"))
    name = before.partition("(")[2]
    return ProcessInfo(pid=inner_pid, start_ticks=int(fields[19]), command=command or f"[{name}]")


def _command(proc: Path) -> str:
    return (proc / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
