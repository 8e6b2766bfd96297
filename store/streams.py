"""Raw output of a trial's processes, byte for byte, as it was read; and the files a trial leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from store.database import Database
from store.fences import Fence, Fenced, lock_trial
from store.trials import TrialFile

_HIGH_WATER = """
SELECT offset_bytes + length(data) FROM stream_chunks
WHERE trial_id = $1 AND attempt_number = $2 AND name = $3 ORDER BY offset_bytes DESC LIMIT 1
"""
_APPEND = f"""
INSERT INTO stream_chunks (trial_id, attempt_number, name, offset_bytes, data)
SELECT id, $2::int, $3::text, $4::bigint, $5::bytea FROM trials
WHERE id = $1 AND (attempt_number, fence_phase, fence_try) <= ($2::int, $6::int, $7::int)
  AND $4::bigint = coalesce(({_HIGH_WATER}), 0)
ON CONFLICT DO NOTHING
RETURNING 1
"""
_READ = """
SELECT data FROM stream_chunks WHERE trial_id = $1 AND attempt_number = $2 AND name = $3 ORDER BY offset_bytes
"""


class LostOutput(OSError):
    """A database that was killed came back without the last output that it took: it is to be read again."""


async def append_chunk(db: Database, fence: Fence, name: str, offset_bytes: int, data: bytes) -> None:
    """Store what was read at `offset_bytes`, which is where the stored output ends.

    What is stored already stays. Raises `Fenced` when another follower has taken over, and `LostOutput`.
    """
    pool = await db.pool()
    # What a process prints is chatty and read again after a crash: it need not wait for the disk.
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL synchronous_commit = off")
        stored = await connection.fetchval(
            _APPEND,
            fence.trial_id,
            fence.attempt_number,
            name,
            offset_bytes,
            data,
            fence.rank,
            fence.try_number,
        )
    if stored is not None:
        return
    end = await high_water(db, fence.trial_id, fence.attempt_number, name)
    if end < offset_bytes:
        raise LostOutput(f"trial {fence.trial_id}: {name} ends at {end}, not at {offset_bytes}")
    if end == offset_bytes:
        raise Fenced(f"trial {fence.trial_id}: output of {fence.phase} is followed by a later try")


async def confirm_streams(db: Database, fence: Fence, ends: Mapping[str, int]) -> None:
    """Make what was appended durable, as far as `ends` (name → bytes). Raises `Fenced` and `LostOutput`."""
    async with db.transaction() as connection:
        await lock_trial(connection, fence)
        for name, end in ends.items():
            stored = await connection.fetchval(_HIGH_WATER, fence.trial_id, fence.attempt_number, name) or 0
            if stored < end:
                raise LostOutput(f"trial {fence.trial_id}: {name} ends at {stored}, not at {end}")


async def high_water(db: Database, trial_id: str, attempt_number: int, name: str) -> int:
    """Where a follower goes on: the end of what is stored."""
    pool = await db.pool()
    return int(await pool.fetchval(_HIGH_WATER, trial_id, attempt_number, name) or 0)


async def read_stream(db: Database, trial_id: str, attempt_number: int, name: str) -> bytes | None:
    """All of a stream; None when nothing was ever stored of it."""
    pool = await db.pool()
    rows = await pool.fetch(_READ, trial_id, attempt_number, name)
    return b"".join(row["data"] for row in rows) if rows else None


async def drop_streams(db: Database, trial_id: str, attempt_number: int) -> None:
    """Forget the chunks once the same bytes are kept as files."""
    pool = await db.pool()
    await pool.execute(
        "DELETE FROM stream_chunks WHERE trial_id = $1 AND attempt_number = $2", trial_id, attempt_number
    )


async def keep_files(db: Database, fence: Fence, files: Sequence[TrialFile]) -> None:
    """Register kept files; a path that is there already is replaced. Raises `Fenced`."""
    async with db.transaction() as connection:
        await lock_trial(connection, fence)
        await connection.executemany(
            "INSERT INTO trial_files (trial_id, attempt_number, path, size_bytes, sha256, blob_key, mode)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)"
            " ON CONFLICT (trial_id, attempt_number, path) DO UPDATE SET size_bytes = excluded.size_bytes,"
            " sha256 = excluded.sha256, blob_key = excluded.blob_key, mode = excluded.mode",
            [
                (f.trial_id, f.attempt_number, f.path, f.size_bytes, f.sha256, f.blob_key, f.mode)
                for f in files
            ],
        )


async def add_trace_events(
    db: Database, trial_id: str, attempt_number: int, rows: Sequence[tuple[int, str, dict[str, Any]]]
) -> None:
    """Store parsed events (seq, type, data); a seq that is there already stays."""
    # One statement that repeats is a transaction of its own.
    pool = await db.pool()
    async with pool.acquire() as connection:
        await connection.executemany(
            "INSERT INTO trace_events (trial_id, attempt_number, seq, type, data)"
            " VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
            [(trial_id, attempt_number, seq, kind, data) for seq, kind, data in rows],
        )
