"""Resumable uploads (contract §1.15): a ledger of how far each came; chunks are blobs until complete."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from domain.errors import ApiError
from store.accounts import Caller
from store.database import Database, now

DATASET_UPLOAD = "dataset"


@dataclass(frozen=True)
class UploadOpening:
    """What a session is opened with; `fields` is the metadata of the single-request form."""

    size_bytes: int
    sha256: str
    fields: dict[str, str]


def chunk_key(session_id: str, offset_bytes: int) -> str:
    """Where a chunk lies; sorted by name they are in order."""
    return f"uploads/{session_id}/{offset_bytes:015d}"


async def open_session(
    connection: Any, caller: Caller, kind: str, opening: UploadOpening, import_id: str | None
) -> str:
    """A new session at offset 0; returns its id, which is safe in a URL."""
    session_id, at = uuid4().hex, now()
    await connection.execute(
        "INSERT INTO upload_sessions (id, owner_user_id, kind, size_bytes, sha256, offset_bytes, fields,"
        " import_id, state, created_at, updated_at) VALUES ($1, $2, $3, $4, $5, 0, $6, $7, 'open', $8, $8)",
        session_id,
        caller.user_id,
        kind,
        opening.size_bytes,
        opening.sha256,
        opening.fields,
        import_id,
        at,
    )
    return session_id


async def find_session(db: Database, caller: Caller, kind: str, session_id: str) -> Any:
    """The session's row; raises `upload_session_not_found`."""
    pool = await db.pool()
    row = await pool.fetchrow(
        "SELECT * FROM upload_sessions WHERE id = $1 AND owner_user_id = $2 AND kind = $3",
        session_id,
        caller.user_id,
        kind,
    )
    if row is None:
        raise ApiError("upload_session_not_found", "No such upload session.")
    return row


def check_writable(session: Any, offset_bytes: int, length: int) -> None:
    """Raises `upload_session_failed`, `upload_offset_mismatch`, or `invalid_input` for a chunk too long."""
    if session["state"] != "open":
        raise ApiError("upload_session_failed", f"The upload session is {session['state']}.")
    if offset_bytes != session["offset_bytes"]:
        raise _mismatch(session["offset_bytes"])
    if length == 0 or offset_bytes + length > session["size_bytes"]:
        message = f"{length} bytes at {offset_bytes} do not fit an upload of {session['size_bytes']}."
        raise ApiError("invalid_input", message)


async def advance(db: Database, session_id: str, offset_bytes: int, length: int) -> int:
    """The chunk at `offset_bytes` is stored; returns the new offset.

    Raises `upload_offset_mismatch` when another request has moved it meanwhile.
    """
    pool = await db.pool()
    moved = await pool.fetchval(
        "UPDATE upload_sessions SET offset_bytes = offset_bytes + $3, updated_at = now()"
        " WHERE id = $1 AND offset_bytes = $2 AND state = 'open' RETURNING offset_bytes",
        session_id,
        offset_bytes,
        length,
    )
    if moved is None:
        at = await pool.fetchval("SELECT offset_bytes FROM upload_sessions WHERE id = $1", session_id)
        raise _mismatch(int(at or 0))
    return int(moved)


async def lock_session(connection: Any, session_id: str) -> tuple[str, str | None]:
    """(state, import id), locked until the transaction ends."""
    row = await connection.fetchrow(
        "SELECT state, import_id FROM upload_sessions WHERE id = $1 FOR UPDATE", session_id
    )
    return row["state"], row["import_id"]


async def fail_session(db: Database, session: Any, why: str) -> None:
    """End a session for good, and the import that it had registered."""
    async with db.transaction() as connection:
        await finish_session(connection, session["id"], "failed", None)
        failure = {"code": "import_failed", "message": why, "failures": []}
        version_id = await connection.fetchval(
            "UPDATE dataset_imports SET status = 'FAILED', is_receiving = false, failure = $2,"
            " updated_at = now() WHERE id = $1 RETURNING version_id",
            session["import_id"],
            failure,
        )
        await connection.execute("UPDATE dataset_versions SET state = 'FAILED' WHERE id = $1", version_id)


async def finish_session(connection: Any, session_id: str, state: str, import_id: str | None) -> None:
    """End a session as `complete` or `failed`; a repeated finalize finds its import."""
    await connection.execute(
        "UPDATE upload_sessions SET state = $2, import_id = coalesce($3, import_id), updated_at = now()"
        " WHERE id = $1",
        session_id,
        state,
        import_id,
    )


def _mismatch(offset_bytes: int) -> ApiError:
    return ApiError(
        "upload_offset_mismatch",
        f"The upload stands at {offset_bytes} bytes.",
        details={"offset": offset_bytes},
    )
