"""A worker that was frozen while it unpacked an import changes nothing that its successor wrote."""

from __future__ import annotations

import pytest

from domain.vocabulary import DatasetImportPhase, DatasetVersionState
from store import import_record
from store.database import Database
from store.datasets import DatasetTask
from store.fences import Fenced
from store.import_record import Unpacker
from tests.finished_jobs import publish


async def unpackers(db: Database) -> tuple[Unpacker, Unpacker]:
    """A first try, and the second that has taken its place."""
    await publish(db, "alpha")
    [row] = await (await db.pool()).fetch("SELECT id FROM dataset_versions")
    await (await db.pool()).execute(
        "INSERT INTO dataset_imports (id, owner_user_id, org_id, dataset_name, version, version_id, status,"
        " is_receiving, warnings, created_at, updated_at)"
        " VALUES ('import', 'u', 'o', 'alpha', '1', $1, 'QUEUED', false, '[]', now(), now())",
        row["id"],
    )
    first, second = Unpacker("import", row["id"], 1), Unpacker("import", row["id"], 2)
    await import_record.start_phase(db, first, DatasetImportPhase.EXTRACTING)
    await import_record.start_phase(db, second, DatasetImportPhase.PARSING)
    return first, second


async def test_tasks_are_put_by_the_last_try_alone(db: Database) -> None:
    first, second = await unpackers(db)
    await import_record.put_tasks(db, second, [a_task(second, "new")])
    with pytest.raises(Fenced):
        await import_record.put_tasks(db, first, [a_task(first, "old")])
    rows = await (await db.pool()).fetch("SELECT task_name FROM dataset_tasks")
    assert [row["task_name"] for row in rows] == ["new"]


async def test_phases_and_refusals_are_the_last_trys_alone(db: Database) -> None:
    first, _ = await unpackers(db)
    with pytest.raises(Fenced):
        await import_record.start_phase(
            db, first, DatasetImportPhase.BUILDING, state=DatasetVersionState.BUILDING
        )
    with pytest.raises(Fenced):
        await import_record.fail_import(db, "import", {"code": "x"}, first)
    row = await (await db.pool()).fetchrow("SELECT status, failure FROM dataset_imports")
    assert (row["status"], row["failure"]) == ("RUNNING", None)


def a_task(unpacker: Unpacker, name: str) -> DatasetTask:
    return DatasetTask(
        version_id=unpacker.version_id,
        task_name=name,
        ordinal=0,
        state="PENDING",
        verdicts={},
        notes=[],
        images={},
    )
