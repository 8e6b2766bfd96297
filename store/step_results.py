"""The steps of a trial's newest attempt number, as recorded; written by `record` with the trial's members."""

from __future__ import annotations

from typing import Any

from store.database import Database


async def step_results(db: Database, trial_id: str) -> list[dict[str, Any]]:
    """StepResult of contract 3.8 of each step that was begun, in order; empty for any other trial."""
    pool = await db.pool()
    found = await pool.fetchval("SELECT result -> 'step_results' FROM trials WHERE id = $1", trial_id)
    return list(found or [])
