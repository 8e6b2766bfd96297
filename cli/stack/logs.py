"""Logs of the stack's processes: kept small, and quoted when a start fails.

A process appends to its file by a descriptor that outlives the supervisor, so a log is rotated by copy
and truncation: what is written in the moment between the two is lost, a killed supervisor loses nothing.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MAX_LOG_BYTES = 20 * 1024 * 1024
KEPT_LOGS = 4


def rotate_all(directory: Path) -> None:
    """Rotate what is too long."""
    for log in directory.glob("*.log"):
        rotate(log)


def rotate(log: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
    """`x.log` above the limit becomes `x.log.1`, older ones move up, the oldest goes."""
    if log.stat().st_size <= max_bytes:
        return
    for number in range(KEPT_LOGS, 1, -1):
        older = log.with_name(f"{log.name}.{number - 1}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number}"))
    shutil.copyfile(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)


def tail(log: Path, lines: int = 5) -> str:
    """The last lines, empty when there is no log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])
