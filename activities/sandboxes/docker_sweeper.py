"""Run as `python -I -S -c` in a container that joined a box's pid namespace: kill all but what is kept.

One argument, JSON: the pairs `[pid, start_ticks]` to keep. Prints how many it killed. It has its own
cgroup and files, so a full pids limit or a replaced `/bin/sh` of the box does not touch it. Stopping
with `kill(-1)` is atomic, children in the middle of a fork included, so nothing can fork away.
"""

import contextlib
import json
import os
import signal
import sys
import time

MAX_PASSES = 200
PASS_PAUSE_SEC = 0.01
OVER = ("Z", "X")

# pid -> (start_ticks, parent)
Table = dict[int, tuple[int, int]]


def living() -> Table:
    """Every process of the namespace that is not over (proc(5): fields 3, 4 and 22 of stat)."""
    table: Table = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="latin-1") as file:
                fields = file.read().rpartition(") ")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if fields[0] not in OVER:
            table[int(name)] = (int(fields[19]), int(fields[1]))
    return table


def own_of_box(table: Table) -> set[int]:
    """Init, what keeps the box up (the first child of init) and what that started itself.

    Nothing of an agent's can be older, or become a child of it.
    """
    keeper = min((start, pid) for pid, (start, parent) in table.items() if parent == 1)[1]
    return {1, keeper} | {pid for pid, (_, parent) in table.items() if parent == keeper}


def sweep(keep: set[tuple[int, int]]) -> int:
    killed: set[tuple[int, int]] = set()
    kept_pids = own_of_box(living()) | {os.getpid()}
    try:
        for _ in range(MAX_PASSES):
            os.kill(-1, signal.SIGSTOP)
            keys = {(pid, start) for pid, (start, _) in living().items() if pid not in kept_pids}
            victims = keys - keep
            if not victims:
                break
            for pid, _ in victims:
                kill(pid)
            killed |= victims
            time.sleep(PASS_PAUSE_SEC)
    finally:
        os.kill(-1, signal.SIGCONT)
    return len(killed)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended by itself
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.stdout.write(f"{sweep({(pid, start) for pid, start in json.loads(sys.argv[1])})}\n")
