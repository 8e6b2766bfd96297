"""The processes of a container, read from this machine's /proc: no program of the box is asked."""

from __future__ import annotations

from pathlib import Path

from activities.sandboxes.base import ProcessInfo

CGROUPS = Path("/sys/fs/cgroup")
OVER = ("Z", "X")


def container_processes(init_pid: int) -> list[ProcessInfo]:
    """Those that live in the cgroup of `init_pid`, by the pids they have inside.

    Raises `ProcessLookupError` when that process is over.
    """
    try:
        pids = _cgroup_procs(Path(f"/proc/{init_pid}/cgroup").read_text()).read_text().split()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {init_pid} is over") from error
    found = [_read(Path("/proc") / pid) for pid in pids]
    return sorted((each for each in found if each), key=lambda each: each.pid)


def _cgroup_procs(cgroup: str) -> Path:
    """The file that lists its members (cgroups(7)): the pids controller of v1, or the one tree of v2."""
    paths = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in cgroup.splitlines()}
    root = CGROUPS / "pids" if "pids" in paths else CGROUPS
    return root / paths.get("pids", paths[""]).lstrip("/") / "cgroup.procs"


def _read(proc: Path) -> ProcessInfo | None:
    try:
        status = (proc / "status").read_text().splitlines()
        fields = (proc / "stat").read_text(encoding="latin-1").rpartition(") ")[2].split()
        command = (proc / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in OVER:
        return None
    inner_pid = next(int(line.split()[-1]) for line in status if line.startswith("NSpid:"))
    text = command.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return ProcessInfo(pid=inner_pid, start_ticks=int(fields[19]), command=text)
