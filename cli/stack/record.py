"""`run/stack.json`: what the living supervisor says of itself, for `evolve status` and `evolve down`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from pydantic import BaseModel, ValidationError

from cli.stack.home import write_private
from cli.stack.ports import StackPorts


class StackRecord(BaseModel):
    """`restarts` counts by process, since `started_at`."""

    started_at: datetime
    ports: StackPorts
    restarts: dict[str, int]

    @classmethod
    def read(cls, path: Path) -> StackRecord | None:
        """None when the stack was never up, or went down in order."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (FileNotFoundError, ValidationError):
            return None

    def write(self, path: Path) -> None:
        write_private(path, self.model_dump_json(indent=2) + "\n")
