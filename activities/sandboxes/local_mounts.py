"""What a local box sees: its layers, a closed /proc, a small /dev, and the namespaces that hold it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from activities.sandboxes.base import Mount
from activities.sandboxes.local_host import LocalHost
from activities.sandboxes.local_spawn import memory_file, run_program, spawn
from activities.sandboxes.local_template import unmerged_folders
from domain.errors import ProviderCreateFailure

# What a box's root keeps; it is held in a user namespace that owns neither mounts nor network.
CAPABILITIES = (
    *("chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid"),
    *("setpcap", "setfcap", "sys_chroot", "audit_write"),
)
# The directories of an image, and of what a box changes.
LAYERS = ("root", "usr", "dpkg")
SHARED_MEMORY_BYTES = 256 * 1024 * 1024
# bwrap leaves them writable for root: it judges /proc/sys by the mode of its directory.
READ_ONLY_PROC = ("sys", "irq", "bus", "fs", "acpi", "asound", "driver", "pressure", "scsi", "tty")
HIDDEN_PROC = (
    *("kcore", "keys", "key-users", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats"),
    *("mtrr", "sched_debug", "slabinfo", "sysrq-trigger", "timer_list", "timer_stats", "vmallocinfo"),
)
UNSHARE_SEC = 5.0
POLL_SEC = 0.001


@dataclass(frozen=True)
class Root:
    """The layers below a box's own: the template, and an image's directory if there is one.

    `mounts` are laid over them all.
    """

    template: Path
    image: Path | None = None
    mounts: tuple[Mount, ...] = ()


def box_options(host: LocalHost, layers: Path, root: Root) -> list[str]:
    """bwrap's options for a box whose own changes are kept below `layers`; in the order of mounting."""
    mounts = [word for each in root.mounts for word in ("--ro-bind", str(each.source), each.target)]
    return [*_root_options(host, layers, root), *mounts, *_proc_options(), *_other_options(host)]


def _overlay(layers: Path, name: str, lower: list[Path], target: str) -> list[str]:
    sources = [word for each in lower for word in ("--overlay-src", str(each))]
    return [*sources, "--overlay", str(layers / name), str(layers / f"{name}.work"), target]


def _root_options(host: LocalHost, layers: Path, root: Root) -> list[str]:
    def below(name: str, base: Path) -> list[Path]:
        return [base, root.image / name] if root.image else [base]

    options = _overlay(layers, "root", below("root", root.template), "/")
    for name, path in (("usr", "/usr"), ("dpkg", "/var/lib/dpkg")):
        if host.is_root and Path(path).is_dir():
            options += _overlay(layers, name, below(name, Path(path)), path)
        else:
            options += ["--ro-bind-try", path, path]
    for path in unmerged_folders():
        options += ["--ro-bind", path, path]
    return options


def _proc_options() -> list[str]:
    options = ["--proc", "/proc"]
    for name in READ_ONLY_PROC:
        if Path("/proc", name).exists():
            options += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in HIDDEN_PROC:
        if Path("/proc", name).exists():
            options += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return options


def _other_options(host: LocalHost) -> list[str]:
    options = ["--dev", "/dev", "--size", str(SHARED_MEMORY_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]
    options += ["--remount-ro", "/dev", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    options += ["--unshare-cgroup-try", "--as-pid-1", "--hostname", "box", "--chdir", "/", "--clearenv"]
    options += ["--setenv", "PATH", "/usr/sbin:/usr/bin:/sbin:/bin", "--cap-drop", "ALL"]
    if host.is_root:
        return options + [word for each in CAPABILITIES for word in ("--cap-add", f"CAP_{each.upper()}")]
    return [*options, "--unshare-user", "--uid", "0", "--gid", "0", "--disable-userns"]


@asynccontextmanager
async def user_namespaces(host: LocalHost) -> AsyncIterator[list[int]]:
    """For root: two nested user namespaces, ids mapped to themselves, as open descriptors.

    The outer one owns the box's mounts and pids; the box itself lives in the inner one, which owns
    nothing and allows no further ones. So even a program of the box that a command of ours runs with
    every capability of that namespace cannot undo a mount. A user's bwrap does the same by itself.
    """
    if not host.is_root:
        yield []
        return
    started: list[int] = []
    try:
        outer = await _unshared(host, [], started)
        _map_ids(outer)
        enter = [host.program("nsenter"), f"--target={outer}", "--user", "--preserve-credentials"]
        shell = [*enter, host.program("sh"), "-c"]
        limit = 'echo 1 >/proc/sys/user/max_user_namespaces && exec "$@"'
        inner = await _unshared(host, [*shell, limit, "limit"], started)
        write_maps = f'echo "$0" >/proc/{inner}/uid_map && echo "$0" >/proc/{inner}/gid_map'
        mapped = await run_program([*shell, write_maps, _identity_map()])
        if mapped.exit_code != 0:
            raise ProviderCreateFailure(f"a box's ids cannot be mapped: {mapped.stderr.decode().strip()}")
        fds = [os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC) for pid in (outer, inner)]
    finally:
        _end(started)
    try:
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def _identity_map() -> str:
    """All ids that this host itself has, up to 65536."""
    first, _, count = Path("/proc/self/uid_map").read_text().splitlines()[0].split()
    return f"0 0 {min(65536, int(first) + int(count))}"


def _map_ids(pid: int) -> None:
    for kind in ("uid", "gid"):
        Path(f"/proc/{pid}/{kind}_map").write_text(_identity_map())


def _end(pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


async def _unshared(host: LocalHost, prefix: list[str], started: list[int]) -> int:
    """A sleeper in a new user namespace, told by its number having changed."""
    with memory_file() as nothing:
        fds = {0: nothing, 1: nothing, 2: nothing}
        pid = spawn([*prefix, host.program("unshare"), "--user", host.program("sleep"), "30"], fds)
    started.append(pid)
    seen = {os.readlink("/proc/self/ns/user")} | {_namespace_of(each) for each in started[:-1]}
    give_up_at = asyncio.get_running_loop().time() + UNSHARE_SEC
    while (now := _namespace_of(pid)) in seen or now is None:
        if now is None or asyncio.get_running_loop().time() > give_up_at:
            raise ProviderCreateFailure("this host lets root make no user namespaces, which local boxes need")
        await asyncio.sleep(POLL_SEC)
    return pid


def _namespace_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/user")
    except FileNotFoundError:
        return None
