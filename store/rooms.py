"""Room on a host, handed on from an attempt's agent's box to its verifier's, and given back unused."""

from __future__ import annotations

from store.capacity_waits import note_wait, note_wait_over
from store.database import Database
from store.fences import Fence, lock_trial
from store.hosts import MARK_GONE, HostChoice, Room, reserve_room


async def exchange_room(
    db: Database, fence: Fence, old_name: str, room: Room, cpu_overcommit: float
) -> HostChoice | None:
    """Give back a box's room and lease another in one step, so that what it needs no less of is not lost.

    The box of `old_name` must be gone. Asked again it answers the same lease. People see on the trial what
    it waits for, and for how long it did. None when the trial was deleted. Raises `Fenced` when a later
    writer holds the place: for one who was away meanwhile nobody would give the room back.
    """
    async with db.transaction() as connection:
        row = await lock_trial(connection, fence)
        if row is None:
            return None
        await connection.execute(MARK_GONE, old_name)
        choice = await reserve_room(connection, room, cpu_overcommit)
        if choice.waiting_for is None:
            await note_wait_over(connection, row)
        else:
            await note_wait(connection, row, choice.waiting_for)
        return choice


async def release_unmade(db: Database, trial_id: str, attempt_number: int) -> None:
    """Give back what an attempt has leased for boxes that were not made, its agent's or its verifier's."""
    pool = await db.pool()
    await pool.execute(
        "UPDATE box_leases SET state = 'gone', gone_at = now()"
        " WHERE trial_id = $1 AND attempt_number = $2 AND state = 'reserved' AND box_id IS NULL",
        trial_id,
        attempt_number,
    )
