"""CPU time of process trees, children that have ended included."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MS_PER_TICK = 1000 / os.sysconf("SC_CLK_TCK")


def tree_cpu_ms(root: int) -> float:
    """CPU-ms of a process and all that descends from it: its own and that of ended children it waited for."""
    parents, spent = _processes()
    members, found = {root}, True
    while found:
        new = {pid for pid, parent in parents.items() if parent in members and pid not in members}
        members |= new
        found = bool(new)
    return sum(spent.get(pid, 0.0) for pid in members)


def trees_cpu_ms(roots: Mapping[str, int]) -> dict[str, float]:
    """By name. A root below another root is counted in both."""
    return {name: tree_cpu_ms(pid) for name, pid in roots.items()}


def _processes() -> tuple[dict[int, int], dict[int, float]]:
    """Every process's parent, and its CPU-ms with those of its waited-for children."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        spent[pid] = sum(map(int, fields[11:15])) * MS_PER_TICK
    return parents, spent
