"""What a coding agent's harness is to us: installed into a box, launched once, its outputs named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from activities.sandboxes.base import Box
from domain.arms import AgentArm
from domain.tasks import Task


@dataclass(frozen=True)
class HarnessContext:
    """What a harness may know: the task, its directory on this host, and the arm."""

    task: Task
    task_dir: Path
    arm: AgentArm


@dataclass(frozen=True)
class Launch:
    """The agent's command. `env` comes on top of the task's own."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    stdin: bytes | None = None


class Harness(Protocol):
    """One coding agent."""

    @property
    def name(self) -> str: ...

    @property
    def stdout_file(self) -> str:
        """The name its stdout is kept under in `agent/` (contract 8.2)."""
        ...

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Put what it needs into the box; may be called again after a crash."""
        ...

    def launch(self, context: HarnessContext) -> Launch | None:
        """The command; None when there is nothing to run."""
        ...
