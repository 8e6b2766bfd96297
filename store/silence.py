"""That a running agent has written nothing for a while: a member of its record, beyond the contract's.

`x_silent_since`: when its last output was read; gone or null while it writes, and once the trial has settled.
"""

from __future__ import annotations

from datetime import datetime

from store.database import Database
from store.fences import Fence
from store.record import PhaseChange, enter_phase, iso

MEMBER = "x_silent_since"


async def note_silence(db: Database, fence: Fence, since: datetime | None) -> None:
    """Say since when nothing came, or (None) that something does. Raises `Fenced`."""
    await enter_phase(db, fence, PhaseChange(members={MEMBER: since and iso(since)}))


async def silent_since(db: Database, trial_id: str) -> datetime | None:
    """What the record says."""
    pool = await db.pool()
    said = await pool.fetchval("SELECT result ->> $2 FROM trials WHERE id = $1", trial_id, MEMBER)
    return datetime.fromisoformat(said) if said else None
