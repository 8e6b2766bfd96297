"""The processes of a local box: the pod first, its NAT if it has one, then the box that joins it.

All live in the pod's pid namespace, so that one kill of its first process ends them all.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from activities.sandboxes import cgroups, relay
from activities.sandboxes.base import PIDS_LIMIT, ProcessKey
from activities.sandboxes.local_host import LocalHost, firewall_command, firewall_input
from activities.sandboxes.local_mounts import Root, box_options
from activities.sandboxes.local_record import BoxDirectory
from activities.sandboxes.local_spawn import (
    children,
    kill_process,
    memory_file,
    parse_stat,
    process_key,
    reap,
    run_program,
    spawn,
)
from domain.errors import ProviderCreateFailure

READY_SEC = 30.0
POLL_SEC = 0.003

# Writes its own pid where a successor finds it, then lets go of the box's lock: see local_record.
_LAUNCH = 'read -r line </proc/self/stat; echo "$line" >"$1"; shift; exec 9<&-; exec "$@"'
_JOIN = 'while [ "$1" != -- ]; do echo 0 >"$1" || exit 70; shift; done; shift; exec "$@"'
_STAY = """
exec 4<&- 5<&-
env --ignore-signal=CHLD true || exit
echo ok
exec env --ignore-signal=CHLD sleep "$0" >/dev/null 2>&1
"""


@dataclass(frozen=True)
class Making:
    """A box that is being made or changed, with its lock held."""

    host: LocalHost
    directory: BoxDirectory
    lock: int


@dataclass(frozen=True)
class Ceilings:
    lifetime_sec: float
    memory_mb: int | None
    storage_mb: int | None


def launch(making: Making, name: str, argv: Sequence[str], fds: dict[int, int] | None = None) -> None:
    """Start a long-lived program: its output to `<name>.log`, its pid to `<name>.stat`."""
    path = making.directory.path
    with open(os.devnull, "rb") as nothing, open(path / f"{name}.log", "ab") as log:
        ours = {0: nothing.fileno(), 1: log.fileno(), 2: log.fileno(), 9: making.lock, **(fds or {})}
        launcher = [making.host.program("sh"), "-c", _LAUNCH, "launch", str(path / f"{name}.stat")]
        spawn([*launcher, *argv], ours)


def launched(directory: BoxDirectory, name: str) -> ProcessKey | None:
    """The program that `launch` started, if it still runs."""
    key = _written_key(directory, name)
    return key if key and process_key(key[0]) == key else None


def has_ended(directory: BoxDirectory, name: str) -> bool:
    """Whether the program was launched and runs no more."""
    return _written_key(directory, name) is not None and launched(directory, name) is None


def _written_key(directory: BoxDirectory, name: str) -> ProcessKey | None:
    try:
        line = (directory.path / f"{name}.stat").read_bytes()
    except FileNotFoundError:
        return None
    return (int(line.split()[0]), parse_stat(line)[1]) if line else None


async def start_pod(making: Making, *, is_public: bool, ceilings: Ceilings) -> ProcessKey:
    """Start the pod and wait until a box may join it; returns its first process."""
    host, layers = making.host, making.directory.layers
    layers.mkdir(parents=True, exist_ok=True)
    disk = await _make_disk(making, ceilings.storage_mb)
    script = str(Path(__file__).with_name("local_pod.sh"))
    frozen = ["/usr", str(Path(host.bwrap).parent)]
    relay_program = [host.python, relay.__file__, str(host.gateway_socket)]
    with memory_file(firewall_input(host) if is_public else b"") as rules:
        command = [*host.unshare(), host.program("sh"), script, *relay_program]
        launch(making, "pod", [*command, str(layers), disk, *frozen], {0: rules})
        await _wait_for(making, "pod", b"up\n")
    return _only_child(making, "pod")


async def _make_disk(making: Making, storage_mb: int | None) -> str:
    """An empty file system of that size in a file that takes no room yet; "" where disks have no size."""
    if storage_mb is None or not making.host.can_size_disks:
        return ""
    image = making.directory.path / "disk.img"
    with image.open("wb") as file:
        file.truncate(storage_mb * 1024 * 1024)
    options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard,root_owner=0:0"
    command = [making.host.program("mkfs.ext4"), "-q", "-F", "-m", "0", "-O", "^has_journal", "-E", options]
    made = await run_program([*command, str(image)])
    if made.exit_code != 0:
        raise ProviderCreateFailure(f"a disk of {storage_mb} MB: {_text(made.stderr)}")
    return str(image)


async def _wait_for(making: Making, name: str, word: bytes) -> None:
    """Until the program's log holds the line; raises `ProviderCreateFailure` with what it holds instead."""
    log, clock = making.directory.path / f"{name}.log", asyncio.get_running_loop().time
    give_up_at = clock() + READY_SEC
    while True:
        told = log.read_bytes()
        if word in told:
            return
        if has_ended(making.directory, name) or clock() > give_up_at:
            told = log.read_bytes()
            if word not in told:
                raise ProviderCreateFailure(f"the {name} of a local box did not start: {_text(told)}")
            return
        await asyncio.sleep(POLL_SEC)


def _only_child(making: Making, name: str, depth: int = 1) -> ProcessKey:
    """The first process below a launched one, `depth` levels down."""
    key = launched(making.directory, name)
    for _ in range(depth):
        below = children(key[0]) if key else []
        key = process_key(below[0]) if below else None
    if key is None:
        told = (making.directory.path / f"{name}.log").read_bytes()
        raise ProviderCreateFailure(f"the {name} of a local box ended at once: {_text(told)}")
    return key


def _text(told: bytes) -> str:
    return told[-2000:].decode(errors="replace").strip() or "it said nothing"


async def wait_for_relay(making: Making) -> None:
    await _wait_for(making, "pod", b"ready\n")


async def attach_nat(making: Making, pod: ProcessKey, *, with_firewall: bool) -> None:
    """Give the pod the internet, behind its firewall."""
    host = making.host
    if with_firewall:
        entered = [*host.enter(pod[0], "--net"), *firewall_command(host)]
        ruled = await run_program(entered, stdin=firewall_input(host))
        if ruled.exit_code != 0:
            raise ProviderCreateFailure(f"the firewall of a local box: {_text(ruled.stderr)}")
    options = [
        "--configure",
        "--mtu=65520",
        "--disable-host-loopback",
        "--enable-sandbox",
        "--enable-seccomp",
    ]
    nat = [host.program("slirp4netns"), *options, "--ready-fd=8", "--netns-type=path"]
    with memory_file() as ready:
        command = [*host.enter(pod[0], "--pid"), *nat, f"/proc/{pod[0]}/ns/net", "tap0"]
        launch(making, "nat", command, {8: ready})
        while not os.fstat(ready).st_size:
            if has_ended(making.directory, "nat"):
                told = (making.directory.path / "nat.log").read_bytes()
                raise ProviderCreateFailure(f"slirp4netns did not start: {_text(told)}")
            await asyncio.sleep(POLL_SEC)


async def detach_nat(directory: BoxDirectory) -> None:
    """Take the internet away: tap0 goes with its holder."""
    await _end(directory, "nat")


async def _end(directory: BoxDirectory, name: str) -> None:
    """End a launched program that waits for a child in another pid namespace: the child first."""
    key = launched(directory, name)
    if key is not None:
        for below in children(key[0]):
            child = process_key(below)
            if child is not None:
                await kill_process(child)
        await kill_process(key)
    written = _written_key(directory, name)
    if written is not None:
        reap(written)
    (directory.path / f"{name}.stat").unlink(missing_ok=True)


async def end_pod(directory: BoxDirectory) -> None:
    """End everything of a box, whatever had been made of it when its creator died."""
    for name in ("pod", "box", "nat"):
        await _end(directory, name)


async def boot_box(
    making: Making, pod: ProcessKey, namespaces: Sequence[int], root: Root, ceilings: Ceilings
) -> ProcessKey:
    """Start the box in the pod and `user_namespaces`; returns its first process, which cannot be killed
    from inside."""
    host, name = making.host, making.directory.name
    options = box_options(host, making.directory.layers, root)
    stay = ["--", "/bin/sh", "-c", _STAY, str(max(1, round(ceilings.lifetime_sec)))]
    enter = host.enter(pod[0], "--net", "--pid", "--mount")
    options += ["--userns", "4", "--userns2", "5"] if namespaces else []
    with memory_file(b"".join(os.fsencode(each) + b"\0" for each in options)) as arguments:
        fds = {3: arguments, **dict(zip((4, 5), namespaces, strict=False))}
        command = [*limit_command(host, name, ceilings), *enter, host.bwrap, "--args", "3", *stay]
        launch(making, "box", command, fds)
        await _wait_for(making, "box", b"ok\n")
    return _only_child(making, "box", depth=2)


def limit_command(host: LocalHost, name: str, ceilings: Ceilings) -> list[str]:
    """The start of a command line whose program is held to the box's ceilings."""
    if host.is_root:
        return [host.program("sh"), "-c", _JOIN, "join", *cgroups.entry_files(name), "--"]
    # Without control groups a fork bomb gets the same share of the CPU for each of its processes.
    yielding = [host.program("nice"), "-n", "15"]
    limits = [f"--nproc={PIDS_LIMIT}"]
    if ceilings.memory_mb:
        limits.append(f"--data={ceilings.memory_mb * 1024 * 1024}")
    if ceilings.storage_mb:
        limits.append(f"--fsize={ceilings.storage_mb * 1024 * 1024}")
    return [*yielding, host.program("prlimit"), *limits, "--"]
