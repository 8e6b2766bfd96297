"""Parsed traces: written as they come, read by pages, searched over a job (contract 2.7, 2.8, 4.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from domain.errors import ApiError
from store.database import Database
from store.fences import Fence
from store.pages import PageRequest

GATEWAY_SEQ_BASE = 1_000_000_000
"""Below it the prompt (1) and what the harness printed; from it on the gateway's calls (contract 5)."""
SAMPLE_EVENTS = 5
MAX_PAGE_BYTES = 32 * 1024 * 1024
"""A page ends early where its events' data are larger than this together; one event is always given."""
ROWS_AT_ONCE = 500
CHUNKS_AT_ONCE = 8

TraceRow = tuple[int, str, dict[str, Any]]
"""seq, type, data."""

_WRITE = """
INSERT INTO trace_events (trial_id, attempt_number, seq, type, data)
SELECT t.id, $2::int, e.seq, e.type, e.data
FROM trials t, unnest($5::bigint[], $6::text[], $7::jsonb[]) AS e(seq, type, data)
WHERE t.id = $1 AND (t.attempt_number, t.fence_phase, t.fence_try) <= ($2::int, $3::int, $4::int)
ON CONFLICT (trial_id, attempt_number, seq) DO UPDATE SET type = excluded.type, data = excluded.data
WHERE (trace_events.type, trace_events.data) IS DISTINCT FROM (excluded.type, excluded.data)
"""
_CLOSE = """
WITH gone AS (
  DELETE FROM trace_events e USING trials t
  WHERE t.id = $1 AND e.trial_id = t.id AND e.attempt_number = $2::int AND e.seq > $5 AND e.seq < $6
    AND (t.attempt_number, t.fence_phase, t.fence_try) <= ($2::int, $3::int, $4::int))
SELECT count(*) FROM trace_events
WHERE trial_id = $1 AND attempt_number = $2::int AND seq BETWEEN $7 AND $5
"""
_PROMPT = """
SELECT coalesce(
  (SELECT seq FROM trace_events WHERE trial_id = $1 AND attempt_number = $2 AND type = 'prompt'
   ORDER BY seq OFFSET $3 LIMIT 1),
  (SELECT coalesce(max(seq), 0) + 1 FROM trace_events
   WHERE trial_id = $1 AND attempt_number = $2 AND seq < $4))
"""
_CHUNKS = """
SELECT offset_bytes, data FROM stream_chunks
WHERE trial_id = $1 AND attempt_number = $2 AND name = $3 AND offset_bytes > $4
ORDER BY offset_bytes LIMIT $5
"""
_EVENTS = """
SELECT seq, type, data FROM trace_events WHERE trial_id = $1 AND attempt_number = $2 AND seq > $3
ORDER BY seq LIMIT $4
"""
_BYTES = """
SELECT sum(octet_length(data::text)) FROM trace_events WHERE trial_id = $1 AND attempt_number = $2
"""
# The filter of a trace and of a job's search: a type, and a pattern over type and data as text.
_MATCHES = """({type}::text IS NULL OR e.type = {type})
AND ({grep}::text IS NULL OR e.type ~* {grep} OR e.data::text ~* {grep})"""
_PAGE = f"""
SELECT seq, type, data, n_found FROM (
  SELECT p.*, count(*) OVER () AS n_found,
    sum(octet_length(data::text)) OVER (ORDER BY seq) - octet_length(data::text) AS bytes_before
  FROM (SELECT seq, type, data FROM trace_events e
        WHERE trial_id = $1 AND attempt_number = $2 AND seq > $3 AND seq >= $4
          AND {_MATCHES.format(type="$5", grep="$6")}
        ORDER BY seq LIMIT $7) p) q
WHERE bytes_before < $8 ORDER BY seq
"""
_TAIL = f"""
SELECT min(seq) FROM (
  SELECT seq FROM trace_events e WHERE trial_id = $1 AND attempt_number = $2
    AND {_MATCHES.format(type="$3", grep="$4")}
  ORDER BY seq DESC LIMIT $5) t
"""
# Trials one after another in the order of their ids, so that a page searches no more of them than it shows.
_GROUPS = f"""
SELECT t.id, t.task_name, found.match_count
FROM (SELECT id, task_name, attempt_number FROM trials WHERE job_id = $1 AND id > $2 ORDER BY id) t
CROSS JOIN LATERAL (
  SELECT count(*) AS match_count FROM trace_events e
  WHERE e.trial_id = t.id AND e.attempt_number = t.attempt_number
    AND {_MATCHES.format(type="$3", grep="$4")}) found
WHERE found.match_count > 0 ORDER BY t.id LIMIT $5
"""
_SAMPLES = f"""
SELECT trial_id, seq, type, data FROM (
  SELECT t.id AS trial_id, s.*, sum(octet_length(s.data::text)) OVER (ORDER BY t.id, s.seq)
    - octet_length(s.data::text) AS bytes_before
  FROM trials t CROSS JOIN LATERAL (
    SELECT e.seq, e.type, e.data FROM trace_events e
    WHERE e.trial_id = t.id AND e.attempt_number = t.attempt_number
      AND {_MATCHES.format(type="$2", grep="$3")}
    ORDER BY e.seq LIMIT {SAMPLE_EVENTS}) s
  WHERE t.id = ANY($1)) q
WHERE bytes_before < $4 ORDER BY trial_id, seq
"""
TRACE_TIMEOUT_SEC, JOB_GREP_TIMEOUT_SEC = 10, 40


@dataclass(frozen=True)
class TraceFilter:
    """What a trace read keeps. `tail` is the number of last events to begin at."""

    type: str | None = None
    grep: str | None = None
    tail: int | None = None


async def prompt_seq(db: Database, trial_id: str, attempt_number: int, nth: int) -> int:
    """Where the attempt's nth prompt (from 0) stands in its trace, or will: behind all that is there."""
    pool = await db.pool()
    return int(await pool.fetchval(_PROMPT, trial_id, attempt_number, nth, GATEWAY_SEQ_BASE))


async def write_events(db: Database, fence: Fence, rows: Sequence[TraceRow]) -> None:
    """Store events under their numbers; the same event again changes nothing.

    A parser gives the same event the same number, so whoever reads the stream again repairs what it finds.
    Nothing is written for a trial that is gone or that a later try has taken.
    """
    pool = await db.pool()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        batch = rows[start : start + ROWS_AT_ONCE]
        numbers, types, data = map(list, zip(*batch, strict=True))
        # Parsed from output that is stored, and parsed again after a crash: it need not wait for the disk.
        async with pool.acquire() as connection, connection.transaction():
            await connection.execute("SET LOCAL synchronous_commit = off")
            await connection.execute(_WRITE, *_writer(fence), numbers, types, data)


async def close_events(db: Database, fence: Fence, first: int, last: int) -> bool:
    """Whether events `first` to `last` are all there; the harness's own after `last` are removed.

    So of a multi-step attempt only the newest step's may be closed.
    """
    pool = await db.pool()
    there = await pool.fetchval(_CLOSE, *_writer(fence), last, GATEWAY_SEQ_BASE, first)
    return bool(there == last - first + 1)


def _writer(fence: Fence) -> tuple[str, int, int, int]:
    return fence.trial_id, fence.attempt_number, fence.rank, fence.try_number


async def stored_output(
    db: Database, trial_id: str, attempt_number: int, name: str
) -> AsyncIterator[tuple[int, bytes]]:
    """What is stored of a stream, as (offset, bytes), a few chunks in memory."""
    pool, after = await db.pool(), -1
    while True:
        rows = await pool.fetch(_CHUNKS, trial_id, attempt_number, name, after, CHUNKS_AT_ONCE)
        for row in rows:
            yield row["offset_bytes"], row["data"]
        if len(rows) < CHUNKS_AT_ONCE:
            return
        after = rows[-1]["offset_bytes"]


async def stored_events(db: Database, trial_id: str, attempt_number: int) -> AsyncIterator[TraceRow]:
    """Every event of an attempt number, by seq, some in memory at a time."""
    pool, after = await db.pool(), -1
    while rows := await pool.fetch(_EVENTS, trial_id, attempt_number, after, ROWS_AT_ONCE):
        for row in rows:
            yield row["seq"], row["type"], row["data"]
        after = rows[-1]["seq"]


async def events_bytes(db: Database, trial_id: str, attempt_number: int) -> int:
    """How large the data of an attempt number's events are together."""
    pool = await db.pool()
    total = (
        "SELECT sum(octet_length(data::text)) FROM trace_events WHERE trial_id = $1 AND attempt_number = $2"
    )
    return int(await pool.fetchval(total, trial_id, attempt_number) or 0)


async def read_trace(db: Database, trial: Any, request: PageRequest, wanted: TraceFilter) -> dict[str, Any]:
    """A page of TraceEvent of the newest attempt number, by seq. A cursor is the last seq that was seen.

    Raises `invalid_input` for a pattern that is none or takes too long.
    """
    (after,) = request.after or (-1,)
    key, first = (trial["id"], trial["attempt_number"]), -1
    async with _search(db, wanted.grep, "grep", TRACE_TIMEOUT_SEC) as connection:
        if wanted.tail is not None:
            first = await connection.fetchval(_TAIL, *key, wanted.type, wanted.grep, wanted.tail) or 0
        query = (*key, after, first, wanted.type, wanted.grep, request.fetch, MAX_PAGE_BYTES)
        rows = await connection.fetch(_PAGE, *query)
    shown = rows[: request.limit]
    has_more = bool(rows) and rows[0]["n_found"] > len(shown)
    return {
        "items": [{name: row[name] for name in ("seq", "type", "data")} for row in shown],
        "nextCursor": str(shown[-1]["seq"]) if has_more else None,
        "hasMore": has_more,
    }


async def grep_job(db: Database, job_id: str, request: PageRequest, wanted: TraceFilter) -> dict[str, Any]:
    """A page of JobGrepGroup, by trial id; a cursor is the last group's trial id.

    Raises `invalid_input` for a pattern that is none or takes too long.
    """
    (after,) = request.after or ("",)
    async with _search(db, wanted.grep, "q", JOB_GREP_TIMEOUT_SEC) as connection:
        groups = await connection.fetch(_GROUPS, job_id, after, wanted.type, wanted.grep, request.fetch)
        shown = groups[: request.limit]
        ids = [group["id"] for group in shown]
        samples = await connection.fetch(_SAMPLES, ids, wanted.type, wanted.grep, MAX_PAGE_BYTES)
    events: dict[str, list[dict[str, Any]]] = {trial_id: [] for trial_id in ids}
    for row in samples:
        events[row["trial_id"]].append({name: row[name] for name in ("seq", "type", "data")})
    has_more = len(groups) > len(shown)
    return {
        "items": [
            {
                "trial_id": group["id"],
                "task_name": group["task_name"],
                "match_count": group["match_count"],
                "events": events[group["id"]],
            }
            for group in shown
        ],
        "nextCursor": ids[-1] if has_more else None,
        "hasMore": has_more,
    }


@asynccontextmanager
async def _search(db: Database, pattern: str | None, param: str, timeout_sec: int) -> AsyncIterator[Any]:
    """A connection whose statements end; what is wrong with the pattern is the caller's mistake."""
    try:
        async with db.transaction() as connection:
            await connection.execute(f"SET LOCAL statement_timeout = '{timeout_sec}s'")
            if pattern is not None:
                # Where there is no event, a broken pattern would pass.
                await connection.fetchval("SELECT '' ~* $1", pattern)
            yield connection
    except asyncpg.QueryCanceledError:
        message = f"{param}: the search took longer than {timeout_sec} s; narrow it with a type or a page."
        raise ApiError("invalid_input", message, param=param) from None
    except asyncpg.InvalidRegularExpressionError as error:
        raise ApiError("invalid_input", f"{param}: not a usable pattern: {error}.", param=param) from None
