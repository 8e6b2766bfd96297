"""What exists on this host: a directory a box, with a record that is written before anything is made.

The lock of a box is held by whoever makes or ends it, and by each program that it starts until that has
written down its own pid; so a creator may be killed at any moment and nothing of it is lost from sight.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from activities.sandboxes.base import BoxTag, NetworkMode, ProcessKey

LOCK_POLL_SEC = 0.02


@dataclass(frozen=True)
class BoxRecord:
    """`pod` and `init` are the first processes of the pod and of the box; None while it is being made."""

    tag: BoxTag
    network_mode: NetworkMode
    workdir: str
    env: dict[str, str]
    pod: ProcessKey | None = None
    init: ProcessKey | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    has_service: bool = False


class BoxDirectory:
    """`<state>/boxes/<name>/`, and its lock beside it."""

    def __init__(self, state_dir: Path, name: str) -> None:
        self.name = name
        self.path = state_dir / "boxes" / name
        self._lock_path = state_dir / "locks" / name
        self._trash = state_dir / "trash"

    @property
    def layers(self) -> Path:
        return self.path / "layers"

    def read(self) -> BoxRecord | None:
        try:
            stored: dict[str, Any] = json.loads((self.path / "record.json").read_bytes())
        except FileNotFoundError:
            return None
        for key in ("pod", "init"):
            stored[key] = stored[key] and tuple(stored[key])
        return BoxRecord(**{**stored, "tag": BoxTag(**stored["tag"])})

    def write(self, record: BoxRecord) -> None:
        """Whole or not at all."""
        self.path.mkdir(parents=True, exist_ok=True)
        new = self.path / "record.json.new"
        new.write_text(json.dumps(asdict(record)))
        new.replace(self.path / "record.json")

    def write_network(self, record: BoxRecord, mode: NetworkMode) -> None:
        self.write(replace(record, network_mode=mode))

    def raise_fence(self, record: BoxRecord, fence: int) -> BoxRecord:
        raised = replace(record, tag=replace(record.tag, fence=fence))
        self.write(raised)
        return raised

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[int]:
        """The lock's descriptor, to be handed to programs that are started under it."""
        async with locked_file(self._lock_path) as fd:
            yield fd

    @asynccontextmanager
    async def locked_if_free(self) -> AsyncIterator[bool]:
        """Whether the lock was free; then it is held inside."""
        with _lock_tried(self._lock_path) as fd:
            yield fd is not None

    def discard(self) -> Path | None:
        """Out of sight at once; returns what is left to be removed."""
        self._trash.mkdir(parents=True, exist_ok=True)
        target = self._trash / uuid.uuid4().hex
        try:
            self.path.rename(target)
        except FileNotFoundError:
            return None
        return target

    def forget_lock(self) -> None:
        """Only with the lock held: whoever waits for it sees that its file is another's."""
        self._lock_path.unlink(missing_ok=True)


@asynccontextmanager
async def locked_file(path: Path) -> AsyncIterator[int]:
    """An exclusive lock among all processes, waited for without a thread."""
    while True:
        with _lock_tried(path) as fd:
            if fd is not None:
                yield fd
                return
        await asyncio.sleep(LOCK_POLL_SEC)


@contextmanager
def _lock_tried(path: Path) -> Iterator[int | None]:
    """A descriptor that holds the lock, or None; a lock whose file was removed meanwhile counts for none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd if _try_lock(fd) and _is_still(path, fd) else None
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(path: Path, fd: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(fd).st_ino
    except FileNotFoundError:
        return False
