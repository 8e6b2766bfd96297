"""Waiting for a condition instead of sleeping for a guess."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

POLL_SEC = 0.02


async def eventually(condition: Callable[[], bool]) -> None:
    """Return once the condition holds; the test's own timeout bounds the wait."""
    while not condition():  # noqa: ASYNC110 - the condition lives in another process or on disk
        await asyncio.sleep(POLL_SEC)


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """The same for a condition that has to be asked for."""
    while not await is_so():  # noqa: ASYNC110 - as above
        await asyncio.sleep(POLL_SEC)
