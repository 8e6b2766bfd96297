"""What goes wrong in a storm: processes are killed and frozen, the provider misbehaves, the disk is full.

The order is drawn from the seed; every fault is counted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.chaos.mischief import KINDS, Mischief
from tests.chaos.own_engine import OwnEngine
from tests.cli.stack_harness import CHILDREN, Stack, is_alive, wait_until

KILLS = tuple(f"kill {name}" for name in CHILDREN)
FREEZES = tuple(f"freeze {name}" for name in CHILDREN)
DISK_FULL = "disk full"
ENGINE = "restart docker"
MISCHIEFS = tuple(f"provider {kind}" for kind in KINDS)
DISK_MB = 48


@dataclass(frozen=True)
class Pace:
    """Seconds: between two faults, how long a process is frozen, how long the disk is full."""

    gap_sec: tuple[float, float] = (1.0, 3.0)
    frozen_sec: tuple[float, float] = (1.0, 3.0)
    full_sec: tuple[float, float] = (2.0, 4.0)
    mischiefs_at_once: int = 3


class Nemesis:
    """A thread that does one fault after another until it is told to stop, each at least once in a round."""

    def __init__(
        self, seed: int, stack: Stack, pace: Pace, blobs: Path | None, engine: OwnEngine | None = None
    ) -> None:
        """`blobs` is a small file system of its own that may be filled, `engine` one that may be killed."""
        self.done: Counter[str] = Counter()
        self.log: list[str] = []
        self._random = Random(f"nemesis/{seed}")
        self._stack = stack
        self._pace = pace
        self._blobs = blobs
        self._engine = engine
        self.mischief = Mischief(stack.home / "state" / "mischief")
        self._asked_to_stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nemesis", daemon=True)
        self._failure: BaseException | None = None
        self.n_rounds = 0

    @property
    def is_broken(self) -> bool:
        """Whether it could not go on; `stop` raises why."""
        return self._failure is not None

    @property
    def has_done_all(self) -> bool:
        """Whether every fault was done at least once."""
        return all(self.counted().values())

    @property
    def faults(self) -> tuple[str, ...]:
        """What it does here."""
        here = [*([DISK_FULL] if self._blobs else []), *([ENGINE] if self._engine else [])]
        return (*KILLS, *FREEZES, *MISCHIEFS, *here)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends after the fault that is under way; everything runs again then. Raises what broke it."""
        self._asked_to_stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), "the nemesis does not end"
        self.mischief.forget_all()
        if self._failure is not None:
            raise self._failure

    def counted(self) -> dict[str, int]:
        """Every fault with how often it was done; those of the provider as often as it did them."""
        done = Counter({f"provider {kind}": times for kind, times in self.mischief.done().items()})
        return {fault: (done if fault in MISCHIEFS else self.done)[fault] for fault in self.faults}

    def _run(self) -> None:
        try:
            while not self._asked_to_stop.is_set():
                self._do_round()
                self.n_rounds += 1
        except BaseException as error:
            self._failure = error

    def _do_round(self) -> None:
        """Every fault once, in an order of its own; mischief is planned among the others."""
        mischiefs, others = list(MISCHIEFS), [fault for fault in self.faults if fault not in MISCHIEFS]
        self._random.shuffle(mischiefs)
        self._random.shuffle(others)
        for place, fault in enumerate(others):
            # All are planned by the middle, and have occasions.
            for mischief in mischiefs[2 * place : 2 * place + 2]:
                self._plan(mischief)
            gap_sec = self._random.uniform(*self._pace.gap_sec)
            if self._asked_to_stop.wait(gap_sec):
                return
            self.log.append(f"{time.time():.1f} {fault}")
            self._do(fault)
            self.done[fault] += 1

    def _plan(self, fault: str) -> None:
        kind = fault.removeprefix("provider ")
        self.mischief.plan(kind, self._random.randint(1, self._pace.mischiefs_at_once))

    def _do(self, fault: str) -> None:
        if fault == DISK_FULL:
            self._fill_disk(self._random.uniform(*self._pace.full_sec))
            return
        if fault == ENGINE:
            self._restart_engine()
            return
        what, _, name = fault.partition(" ")
        pid = wait_until(lambda: self._stack.pids().get(name), f"{name} is there to {what}", 90)
        if what == "kill":
            os.kill(pid, signal.SIGKILL)
        else:
            freeze(pid, self._random.uniform(*self._pace.frozen_sec))

    def _restart_engine(self) -> None:
        assert self._engine is not None
        self._engine.end(self._random.choice((signal.SIGKILL, signal.SIGTERM)))
        time.sleep(self._random.uniform(*self._pace.frozen_sec))
        self._engine.start()

    def _fill_disk(self, sec: float) -> None:
        assert self._blobs is not None
        ballast = self._blobs / "ballast"
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 20))
            except OSError:
                pass  # it is full
        try:
            time.sleep(sec)
        finally:
            ballast.unlink()


def freeze(pid: int, sec: float) -> None:
    """Stop a process and its children for a while."""
    stopped = [each for each in (pid, *children(pid)) if _send(each, signal.SIGSTOP)]
    try:
        time.sleep(sec)
    finally:
        for each in reversed(stopped):
            _send(each, signal.SIGCONT)


def children(pid: int) -> list[int]:
    """Of its main thread."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def _send(pid: int, number: signal.Signals) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return is_alive(pid)


@contextmanager
def small_disk(path: Path) -> Iterator[Path | None]:
    """A file system of `DISK_MB` at `path` for root; None for who may mount nothing."""
    if os.geteuid() != 0:
        yield None
        return
    path.mkdir(parents=True, mode=0o700)
    options = ("-t", "tmpfs", "-o", f"size={DISK_MB}m,mode=0700")
    subprocess.run(("mount", *options, "evolve-chaos", str(path)), check=True)
    try:
        yield path
    finally:
        subprocess.run(("umount", "--lazy", str(path)), check=True)
