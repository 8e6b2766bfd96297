"""The outbox: what a request wants of Temporal, written in its transaction and delivered afterwards."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from store.database import Database, now


class IntentKind(StrEnum):
    START_JOB = "job.start"
    CANCEL_JOB = "job.cancel"
    PAUSE_JOB = "job.pause"
    STOP_TRIALS = "trial.stop"
    START_IMPORT = "import.start"
    BUILD_ARCHIVE = "archive.build"
    ORDER_BREAKER = "provider.order"


_NEXT = """
SELECT id, kind, subject_id, payload FROM intents WHERE delivered_at IS NULL
  AND id > $1 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
"""


async def add_intent(
    connection: Any, kind: IntentKind, subject_id: str, payload: dict[str, Any] | None = None
) -> None:
    """Write an intent in the caller's transaction."""
    await connection.execute(
        "INSERT INTO intents (kind, subject_id, payload, created_at, n_tries) VALUES ($1, $2, $3, $4, 0)",
        kind.value,
        subject_id,
        payload or {},
        now(),
    )


async def lock_next_intent(connection: Any, after_id: int) -> Any:
    """The oldest undelivered intent past `after_id` that nobody else holds, locked; or None."""
    return await connection.fetchrow(_NEXT, after_id)


async def is_superseded(connection: Any, intent: Any) -> bool:
    """Whether the same was asked of the same subject again later, delivered or not."""
    query = "SELECT EXISTS (SELECT FROM intents WHERE kind = $1 AND subject_id = $2 AND id > $3)"
    return bool(await connection.fetchval(query, intent["kind"], intent["subject_id"], intent["id"]))


async def mark_delivered(connection: Any, intent_id: int) -> None:
    """Delivered: it will not be tried again."""
    await connection.execute(
        "UPDATE intents SET delivered_at = now(), n_tries = n_tries + 1 WHERE id = $1", intent_id
    )


async def mark_failed(connection: Any, intent_id: int, error: str) -> None:
    """Tried in vain: it stays, with why."""
    await connection.execute(
        "UPDATE intents SET n_tries = n_tries + 1, last_error = $2 WHERE id = $1", intent_id, error[:500]
    )


async def count_undelivered(db: Database) -> int:
    """How many wait; 0 in a quiet system."""
    pool = await db.pool()
    return int(await pool.fetchval("SELECT count(*) FROM intents WHERE delivered_at IS NULL"))
