"""Waiting for what the database says."""

from __future__ import annotations

import asyncio

from store.database import Database


async def until(db: Database, condition: str, deadline_sec: float = 30.0) -> None:
    """Return once the query's one value is true."""
    pool = await db.pool()
    async with asyncio.timeout(deadline_sec):
        while not await pool.fetchval(condition):  # noqa: ASYNC110 - another connection commits it
            await asyncio.sleep(0.02)
