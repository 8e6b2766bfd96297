"""Signs of life for long activities, beside whatever they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

EVERY_SEC = 1.0


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeat until the block ends. A cancel reaches the activity with the answer to a heartbeat."""
    beating = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beating.cancel()


async def _beat() -> None:
    while True:
        # A short activity ends before its first sign of life: that is what keeps it cheap.
        await asyncio.sleep(EVERY_SEC)
        activity.heartbeat()
