"""What a part of the bench measured, beside its target, and under which conditions."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

LOOP = 1_000_000


@dataclass(frozen=True)
class Conditions:
    """How busy and how fast the machine is: the load average, and CPU-ms of a fixed loop of Python."""

    load: float
    loop_ms: float

    @classmethod
    def now(cls) -> Conditions:
        began = time.process_time()
        for _ in range(LOOP):
            pass
        return cls(os.getloadavg()[0], (time.process_time() - began) * 1000)


@dataclass(frozen=True)
class Figure:
    """One number. `samples` are the runs whose median it is; `is_at_most` None: told, without a target."""

    name: str
    samples: Sequence[float]
    unit: str
    target: float | None = None
    is_at_most: bool = True
    conditions: Conditions = field(default_factory=lambda: Conditions.now())

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        is_met = self.value <= self.target if self.is_at_most else self.value >= self.target
        return "met" if is_met else "MISSED"

    def cells(self) -> tuple[str, str, str, str]:
        spread = f" ({min(self.samples):.4g}–{max(self.samples):.4g})" if len(self.samples) > 1 else ""
        sign = "≤" if self.is_at_most else "≥"
        wanted = "" if self.target is None else f"{sign} {self.target:g} {self.unit}"
        return (self.name, f"{self.value:.4g} {self.unit}{spread}", wanted, self.verdict)


def percentile(samples: Sequence[float], percent: int) -> float:
    """The value that `percent` % of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def say(text: str) -> None:
    print(text, flush=True)


def print_table(figures: Sequence[Figure]) -> None:
    """The table that the README explains. Nothing here fails on a number: machines differ."""
    rows = [("what", "measured: median (range)", "target", ""), *(each.cells() for each in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for number, row in enumerate(rows):
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            say("  ".join("-" * width for width in widths))
    met = [each.conditions for each in figures]
    for what, values in (
        ("load average", [each.load for each in met]),
        ("CPU-ms of a loop of a million", [each.loop_ms for each in met]),
    ):
        if values:
            say(f"conditions: {what} {min(values):.1f} to {max(values):.1f}, {os.cpu_count()} cpus")
