"""Control groups of boxes, version 1 and 2: limits where this host lets us set them.

Groups are `<mount>/evolve/<name>`. Version 1 has a tree a controller, version 2 one tree. Where a
controller cannot be used it is simply not among `controllers()`; whoever declares limits says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PARENT = "evolve"
CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_USEC = 100_000


@dataclass(frozen=True)
class Limits:
    memory_mb: int | None
    cpus: float | None
    pids: int


@dataclass(frozen=True)
class _Tree:
    mount: Path
    is_v2: bool
    controllers: tuple[str, ...]

    @property
    def parent(self) -> Path:
        return self.mount / PARENT


@cache
def _trees() -> tuple[_Tree, ...]:
    """The trees of which we can make groups with at least one controller that limits."""
    if os.geteuid() != 0:
        return ()
    found: list[_Tree] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        mount = Path(before.split()[4])
        if kind == "cgroup":
            named = tuple(each for each in CONTROLLERS if each in options.split(" ")[-1].split(","))
            found += [_Tree(mount, False, named)] if named else []
        elif kind == "cgroup2":
            found += [_Tree(mount, True, _delegate(mount))]
    return tuple(tree for tree in found if tree.controllers and _can_make(tree))


def _delegate(mount: Path) -> tuple[str, ...]:
    """Hand the controllers down to our groups; those for which that works."""
    given: list[str] = []
    for controller in CONTROLLERS:
        try:
            (mount / "cgroup.subtree_control").write_text(f"+{controller}")
            (mount / PARENT).mkdir(exist_ok=True)
            (mount / PARENT / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError:
            continue
        given.append(controller)
    return tuple(given)


def _can_make(tree: _Tree) -> bool:
    probe = tree.parent / f"probe-{os.getpid()}"
    try:
        probe.mkdir(parents=True)
        probe.rmdir()
    except OSError:
        return False
    return True


def controllers() -> frozenset[str]:
    """Which of memory, pids and cpu are limited here."""
    return frozenset(each for tree in _trees() for each in tree.controllers)


def make_groups(name: str, limits: Limits) -> None:
    """Make the box's groups with its limits; raises `OSError`."""
    for tree in _trees():
        group = tree.parent / name
        group.mkdir(parents=True, exist_ok=True)
        for file, value in _settings(tree, limits):
            if (group / file).exists():
                (group / file).write_text(value)


def _settings(tree: _Tree, limits: Limits) -> list[tuple[str, str]]:
    settings: list[tuple[str, str]] = []
    if "pids" in tree.controllers:
        settings.append(("pids.max", str(limits.pids)))
    if "memory" in tree.controllers and limits.memory_mb:
        size = str(limits.memory_mb * 1024 * 1024)
        settings += (
            [("memory.max", size), ("memory.swap.max", "0")]
            if tree.is_v2
            else [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)]
        )
    if "cpu" in tree.controllers and limits.cpus:
        quota = int(limits.cpus * _PERIOD_USEC)
        settings += (
            [("cpu.max", f"{quota} {_PERIOD_USEC}")]
            if tree.is_v2
            else [("cpu.cfs_period_us", str(_PERIOD_USEC)), ("cpu.cfs_quota_us", str(quota))]
        )
    return settings


def entry_files(name: str) -> list[str]:
    """Writing "0" to each of these puts the writer into the box's groups."""
    groups = (tree.parent / name for tree in _trees())
    return [str(group / "cgroup.procs") for group in groups if group.is_dir()]


def remove_groups(name: str) -> bool:
    """Whether all are gone; not as long as a process of them is still ending."""
    gone = True
    for tree in _trees():
        try:
            (tree.parent / name).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            gone = False
    return gone
