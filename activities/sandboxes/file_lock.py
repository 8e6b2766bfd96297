"""A lock that processes of this machine and coroutines of one process share: it goes with its holder."""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

POLL_SEC = 0.05


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Wait for the lock and hold it. Waits by trying: a thread that waits in flock cannot be cancelled."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(POLL_SEC)
        yield
