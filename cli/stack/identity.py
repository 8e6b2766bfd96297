"""Which process is meant: a pid alone is soon someone else's."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

SUPERVISOR = "supervisor"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid with its start time (clock ticks since boot) and the boot it counts from."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The living process of a pid; None when there is none or it is a zombie."""
        try:
            line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The command's name, in parentheses, may hold anything: fields are counted after it.
        fields = line.rpartition(")")[2].split()
        if fields[0] in ("Z", "X"):
            return None
        return cls(pid, int(fields[19]), BOOT_ID.read_text(encoding="ascii").strip())

    def is_alive(self) -> bool:
        """Whether it is still this very process."""
        return ProcessIdentity.of(self.pid) == self


@dataclass(frozen=True)
class ProcessRecord:
    """`run/<name>.json`: written by the child itself between fork and exec, so that none is ever unknown.

    `digest` is of the command and environment it was started with.
    """

    identity: ProcessIdentity
    digest: str

    def to_json(self) -> str:
        return json.dumps({**asdict(self.identity), "digest": self.digest})

    @classmethod
    def read(cls, path: Path) -> ProcessRecord | None:
        """The record of a living process; None where there is none, or it is over."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            identity = ProcessIdentity(int(raw["pid"]), int(raw["start_ticks"]), str(raw["boot_id"]))
            record = cls(identity, str(raw["digest"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        return record if identity.is_alive() else None


def record_myself(path: Path, digest: str = "") -> None:
    """Write this process's record."""
    me = ProcessIdentity.of(os.getpid())
    if me is not None:
        path.write_text(ProcessRecord(me, digest).to_json(), encoding="utf-8")
