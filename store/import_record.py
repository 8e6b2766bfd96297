"""What the activities of a dataset import write: progress, tasks, builds, the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import col, delete, update

from domain.vocabulary import DatasetImportPhase, DatasetVersionState, ImportStatus
from store.database import Database, now
from store.datasets import DatasetImport, DatasetTask
from store.fences import Fenced
from store.record import iso


@dataclass(frozen=True)
class Unpacker:
    """Who unpacks an import: one try of its activity. A later one fences this one out."""

    import_id: str
    version_id: str
    try_number: int

    async def lock(self, connection: Any) -> None:
        """Lock the import with the place taken. Raises `Fenced` when a later try has it."""
        taken = await connection.fetchval(
            "UPDATE dataset_imports SET unpack_try = $2 WHERE id = $1 AND unpack_try <= $2 RETURNING id",
            self.import_id,
            self.try_number,
        )
        self.require(taken)

    def require(self, taken: str | None) -> None:
        """Raises `Fenced` for a place that could not be taken."""
        if taken is None:
            raise Fenced(f"import {self.import_id}: try {self.try_number} of its unpacking was taken over")


async def start_phase(
    db: Database,
    unpacker: Unpacker,
    phase: DatasetImportPhase,
    *,
    total: int = 0,
    state: DatasetVersionState | None = None,
) -> None:
    """Begin a phase of the timeline (contract 3.4), completing the one before; move the version to `state`.

    Repeating it is a no-op. Raises `Fenced`.
    """
    async with db.transaction() as connection:
        await unpacker.lock(connection)
        if state is not None:
            await connection.execute(
                "UPDATE dataset_versions SET state = $2 WHERE id = $1", unpacker.version_id, state.value
            )
        import_id = unpacker.import_id
        progress = await _locked_progress(connection, import_id)
        at = iso(now())
        phases: list[dict[str, Any]] = progress["phases"]
        if phases and phases[-1]["name"] == phase.value:
            return
        if phases:
            phases[-1].setdefault("completed_at", at)
        phases.append({"name": phase.value, "started_at": at, "done": 0, "total": total})
        progress.update(phase=phase.value)
        await connection.execute(
            "UPDATE dataset_imports SET progress = $2, status = $3, updated_at = now() WHERE id = $1",
            import_id,
            progress,
            ImportStatus.RUNNING.value,
        )


async def _locked_progress(connection: Any, import_id: str) -> dict[str, Any]:
    stored = await connection.fetchval(
        "SELECT progress FROM dataset_imports WHERE id = $1 FOR UPDATE", import_id
    )
    empty = {
        "phase": "",
        "started_at": iso(now()),
        "phases": [],
        "images": {"built": 0, "mirrored": 0, "banked": 0},
        "codebuild": {"copy_builds": 0, "billed_minutes": 0},
    }
    return stored or empty


async def put_tasks(db: Database, unpacker: Unpacker, tasks: Sequence[DatasetTask]) -> None:
    """The tasks of a version, as parsed; a second call replaces what the first wrote. Raises `Fenced`."""
    async with db.session() as session:
        taken = (
            update(DatasetImport)
            .where(
                col(DatasetImport.id) == unpacker.import_id,
                col(DatasetImport.unpack_try) <= unpacker.try_number,
            )
            .values(unpack_try=unpacker.try_number)
            .returning(col(DatasetImport.id))
        )
        unpacker.require((await session.execute(taken)).scalar())
        await session.execute(delete(DatasetTask).where(col(DatasetTask.version_id) == unpacker.version_id))
        session.add_all(tasks)


async def record_build(
    db: Database, import_id: str, key: tuple[str, str], changes: dict[str, Any], *, was_built: bool
) -> None:
    """One task's build, counted once. `changes` are `{state, images, verdicts, failure}`."""
    async with db.transaction() as connection:
        progress = await _locked_progress(connection, import_id)
        updated = await connection.fetchval(
            "UPDATE dataset_tasks SET state = $3, images = $4, verdicts = verdicts || $5, failure = $6"
            " WHERE version_id = $1 AND task_name = $2 AND state = 'PENDING' RETURNING 1",
            *key,
            changes["state"],
            changes["images"],
            changes["verdicts"],
            changes["failure"],
        )
        if updated is None:
            return
        if progress["phases"]:
            progress["phases"][-1]["done"] += 1
        progress["images"]["built"] += was_built
        await connection.execute(
            "UPDATE dataset_imports SET progress = $2, updated_at = now() WHERE id = $1", import_id, progress
        )


async def built_image(db: Database, key: tuple[str, str], provider: str) -> str | None:
    """The id of the image that a task's build made for a provider; None where none was made."""
    pool = await db.pool()
    return await pool.fetchval(
        "SELECT images -> $3 ->> 'id' FROM dataset_tasks WHERE version_id = $1 AND task_name = $2",
        *key,
        provider,
    )


async def fail_import(
    db: Database, import_id: str, failure: dict[str, Any], unpacker: Unpacker | None = None
) -> None:
    """Refuse the corpus as a whole: import and version FAILED; the served version is untouched.

    Raises `Fenced` when it is the unpacker's word and another has its place.
    """
    async with db.transaction() as connection:
        if unpacker is not None:
            await unpacker.lock(connection)
        row = await connection.fetchrow(
            "UPDATE dataset_imports SET status = 'FAILED', failure = $2, is_receiving = false,"
            " updated_at = now() WHERE id = $1 RETURNING version_id",
            import_id,
            failure,
        )
        if row is not None:
            await connection.execute(
                "UPDATE dataset_versions SET state = 'FAILED' WHERE id = $1", row["version_id"]
            )


_FAIL_PENDING = """
UPDATE dataset_tasks SET state = 'FAILED', failure = $2 WHERE version_id = $1 AND state = 'PENDING'
"""
_UNBUILT = {
    "code": "builder_unavailable",
    "step": "image-build",
    "message": "the build ended for a reason of ours; publish again",
    "excerpt": None,
}
_COUNT = """
SELECT count(*) FILTER (WHERE state = 'READY') AS ready, count(*) FILTER (WHERE state = 'FAILED') AS failed
FROM dataset_tasks WHERE version_id = $1
"""


async def finish_import(db: Database, import_id: str, warnings: list[dict[str, Any]]) -> tuple[str, int, int]:
    """READY and active with one built task or more, else FAILED; returns (status, ready, failed)."""
    async with db.transaction() as connection:
        row = await connection.fetchrow("SELECT * FROM dataset_imports WHERE id = $1 FOR UPDATE", import_id)
        await connection.execute(_FAIL_PENDING, row["version_id"], _UNBUILT)
        counts = await connection.fetchrow(_COUNT, row["version_id"])
        if row["status"] in (ImportStatus.COMPLETED, ImportStatus.FAILED):
            return row["status"], counts["ready"], counts["failed"]
        is_ready = counts["ready"] > 0
        await _close_version(connection, row["version_id"], counts, is_ready)
        await _close_import(connection, row, counts, warnings)
        status = ImportStatus.COMPLETED if is_ready else ImportStatus.FAILED
        return status.value, counts["ready"], counts["failed"]


async def _close_version(connection: Any, version_id: str, counts: Any, is_ready: bool) -> None:
    state = DatasetVersionState.READY if is_ready else DatasetVersionState.FAILED
    await connection.execute(
        "UPDATE dataset_versions SET state = $2, task_count = $3, n_failed_tasks = $4 WHERE id = $1",
        version_id,
        state.value,
        counts["ready"],
        counts["failed"],
    )
    if is_ready:
        await connection.execute(
            "UPDATE datasets SET active_version_id = $1, updated_at = now()"
            " WHERE id = (SELECT dataset_id FROM dataset_versions WHERE id = $1 AND replaced_at IS NULL)",
            version_id,
        )


async def _close_import(connection: Any, row: Any, counts: Any, warnings: list[dict[str, Any]]) -> None:
    progress = await _locked_progress(connection, row["id"])
    if progress["phases"]:
        progress["phases"][-1].setdefault("completed_at", iso(now()))
    failure = None if counts["ready"] else await _no_task_failure(connection, row["version_id"])
    await connection.execute(
        "UPDATE dataset_imports SET status = $2, failure = $3, warnings = warnings || $4, progress = $5,"
        " task_count = $6, updated_at = now() WHERE id = $1",
        row["id"],
        ImportStatus.COMPLETED if counts["ready"] else ImportStatus.FAILED,
        failure,
        warnings,
        progress,
        counts["ready"] + counts["failed"],
    )


async def _no_task_failure(connection: Any, version_id: str) -> dict[str, Any]:
    rows = await connection.fetch(
        "SELECT task_name, failure ->> 'message' AS error FROM dataset_tasks"
        " WHERE version_id = $1 AND state = 'FAILED' ORDER BY task_name",
        version_id,
    )
    return {
        "code": "import_failed",
        "message": f"none of the {len(rows)} tasks could be built",
        "failures": [dict(row) for row in rows],
    }
