"""Boxes that their provider does not let us destroy: stopped, each with an incident, until it relents."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.chaos import remains
from tests.chaos.chaotic_provider import STOPPED
from tests.chaos.mischief import Mischief
from tests.cli.stack_harness import Stack
from tests.running_platform import RunningPlatform

# Longer than the reaper's grace, also for the box of an agent's build.
AGE_SEC = 7200.0
_AGE_LEASES = """
UPDATE box_leases SET gone_at = gone_at - interval '2 hours', reserved_at = reserved_at - interval '2 hours'
WHERE name = ANY($1) RETURNING name
"""


class Refusals:
    """What the provider refuses, beside what the platform says of it."""

    def __init__(self, stack: Stack, platform: RunningPlatform) -> None:
        self._stack = stack
        self._platform = platform
        self._mischief = Mischief(stack.home / "state" / "mischief")

    def boxes(self) -> set[str]:
        """Those that are there and may not be destroyed."""
        return self._mischief.refused() & set(remains.boxes(self._stack))

    def faults(self) -> list[str]:
        """Where boxes and open incidents are not the same, and boxes that are not stopped."""
        refused, found = self.boxes(), self._open()
        wrong = [f"{box} may not be destroyed, and there is no incident" for box in refused - set(found)]
        wrong += [f"{box} has an incident and no need of it: {found[box]}" for box in set(found) - refused]
        for box in refused & set(found):
            if "it is stopped" not in found[box] or not self._is_stopped(box):
                wrong.append(f"{box} is not stopped: {found[box]}")
        return wrong

    def _open(self) -> dict[str, str]:
        """Subject → message."""
        rows = self._platform.rows("SELECT subject, message FROM incidents WHERE resolved_at IS NULL")
        return {row["subject"]: row["message"] for row in rows}

    def _is_stopped(self, box: str) -> bool:
        """A real one that is not stopped has processes, which are found as such."""
        fast = self._fast(box)
        return not fast.exists() or (fast / STOPPED).exists()

    def _fast(self, box: str) -> Path:
        return self._stack.home / "state" / "fast" / "boxes" / box

    def relent(self) -> None:
        """Allow all, let the reaper's grace be over, and have an operator call the reaper."""
        refused = self.boxes()
        self._mischief.relent()
        if not refused:
            return
        self._platform.rows(_AGE_LEASES, list(refused))
        then = time.time() - AGE_SEC
        for box in refused:
            for record in (
                self._fast(box) / "tag.json",
                self._stack.home / "state" / "boxes" / box / "record.json",
            ):
                if record.exists():
                    os.utime(record, (then, then))
        reaped = self._stack.run("admin", "reap")
        assert reaped.returncode == 0, reaped.stderr
