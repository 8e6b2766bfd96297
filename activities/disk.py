"""Whether a disk of this host has room for what a trial may write."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

GB = 1024**3


def low_disk(folders: Iterable[Path], min_free_gb: float) -> str | None:
    """Which folder's disk is nearly full and how full; None while all have room. One that is absent counts
    for where it would be made."""
    for folder in folders:
        place = next(path for path in (folder, *folder.parents) if path.exists())
        free_gb = shutil.disk_usage(place).free / GB
        if free_gb < min_free_gb:
            return f"{free_gb:.1f} GB free at {place}, {min_free_gb:g} GB wanted"
    return None
