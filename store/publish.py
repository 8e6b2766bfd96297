"""What a publish writes: who may use a name, the import and its version, the archive that arrived."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from domain.errors import ApiError
from domain.vocabulary import DatasetVersionState, ImportStatus
from store.accounts import Caller
from store.database import Database, now
from store.dataset_reads import find_dataset, find_version
from store.intents import IntentKind, add_intent
from store.orgs import owning_org

MAX_NAME_CHARS = 128
# Literal routes stand before `/api/datasets/{name}`.
RESERVED_NAMES = frozenset({"imports", "preflight", "publish"})


@dataclass(frozen=True)
class Publication:
    """What is published under which label; `org` as the request named it."""

    name: str
    version: str
    org: str | None = None


@dataclass(frozen=True)
class StoredArchive:
    """An archive in the blob store."""

    key: str
    sha256: str
    size_bytes: int


def check_label(param: str, value: str) -> None:
    """Raises `invalid_input` for a dataset name or version that a reference could not spell."""
    problem = None
    if not value or len(value) > MAX_NAME_CHARS:
        problem = f"must have 1 to {MAX_NAME_CHARS} characters"
    elif value != value.strip() or not value.isprintable():
        problem = "must be printable, without spaces around it"
    elif param == "name" and ("@" in value or value in RESERVED_NAMES):
        problem = f"must not hold @ nor be one of {', '.join(sorted(RESERVED_NAMES))}"
    if problem is not None:
        raise ApiError("invalid_input", f"{param}: {problem}.", param=param)


async def check_name(db: Database, caller: Caller, name: str | None, org: str | None) -> None:
    """What can be refused before the first byte: `org_not_found`, `dataset_name_taken`."""
    async with db.transaction() as connection:
        await owning_org(connection, caller, org)
        if name is not None:
            await _dataset(connection, caller, name)


async def is_published(connection: Any, name: str, version: str) -> bool:
    """Whether the label exists already, so that an upload must not touch it before it is complete."""
    return bool(
        await connection.fetchval(
            "SELECT EXISTS (SELECT FROM dataset_versions v JOIN datasets d ON d.id = v.dataset_id"
            " WHERE d.name = $1 AND v.version = $2 AND v.replaced_at IS NULL AND v.state <> 'RECEIVING')",
            name,
            version,
        )
    )


async def register_import(connection: Any, caller: Caller, publication: Publication) -> str:
    """The dataset (made if it is new), a version that is still receiving, and the import; returns its id.

    A version that has the label already is replaced. Raises `dataset_import_in_progress` while an
    earlier publish of the label is under way.
    """
    check_label("name", publication.name)
    check_label("version", publication.version)
    org_id = await owning_org(connection, caller, publication.org)
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1))", publication.name)
    dataset = await _dataset(connection, caller, publication.name)
    if dataset is None:
        dataset = await _create_dataset(connection, caller, publication.name, org_id)
    await _retire_label(connection, dataset["id"], publication)
    return await _create_import(connection, caller, dataset, publication)


async def attach_archive(connection: Any, import_id: str, archive: StoredArchive) -> None:
    """The archive is complete: the import may start."""
    version_id = await connection.fetchval(
        "UPDATE dataset_imports SET archive_key = $2, archive_sha256 = $3, is_receiving = false,"
        " updated_at = now() WHERE id = $1 AND is_receiving AND status = 'QUEUED' RETURNING version_id",
        import_id,
        archive.key,
        archive.sha256,
    )
    if version_id is None:
        raise ApiError("upload_session_failed", "Another publish of the same label has replaced this one.")
    await connection.execute(
        "UPDATE dataset_versions SET state = $2, source = $3, package_key = $4, package_sha256 = $5,"
        " package_bytes = $6 WHERE id = $1",
        version_id,
        DatasetVersionState.IMPORTING.value,
        {"kind": "archive", "digest": f"sha256:{archive.sha256}"},
        archive.key,
        archive.sha256,
        archive.size_bytes,
    )
    await add_intent(connection, IntentKind.START_IMPORT, import_id)


async def publish_archive(
    db: Database, caller: Caller, publication: Publication, archive: StoredArchive
) -> str:
    """Accept an archive that is stored already, in one transaction; returns the import's id."""
    async with db.transaction() as connection:
        import_id = await register_import(connection, caller, publication)
        await attach_archive(connection, import_id, archive)
    return import_id


async def activate_version(db: Database, caller: Caller, name: str, version: str) -> None:
    """Point the bare name at a version; doing so again changes nothing.

    Raises `version_not_ready` while it is in the making, `version_not_activatable` when it failed.
    """
    dataset = await find_dataset(db, caller, name)
    row = await find_version(db, dataset, version)
    state = DatasetVersionState(row["state"])
    if state is not DatasetVersionState.READY:
        code = "version_not_activatable" if state.is_terminal else "version_not_ready"
        raise ApiError(code, f"{name}@{version} is {state}, not READY.")
    pool = await db.pool()
    await pool.execute(
        "UPDATE datasets SET active_version_id = $2, updated_at = now() WHERE id = $1",
        dataset["id"],
        row["id"],
    )


async def delete_dataset(db: Database, caller: Caller, name: str) -> list[str]:
    """Remove a dataset that no job names; returns the keys of the packages that nothing names any more.

    Raises `dataset_in_use` with some of the jobs, `dataset_import_in_progress`.
    """
    dataset = await find_dataset(db, caller, name)
    async with db.transaction() as connection:
        await connection.execute("SELECT FROM datasets WHERE id = $1 FOR UPDATE", dataset["id"])
        jobs = await connection.fetch(
            "SELECT id FROM jobs WHERE plan @> $1 OR plan @> $2 ORDER BY started_at DESC LIMIT 5",
            {"datasets": [{"name": name}]},
            {"derivation": {"with_tests": {"name": name}}},
        )
        if jobs:
            details = {"sampleJobIds": [row["id"] for row in jobs]}
            raise ApiError("dataset_in_use", f"Jobs name {name}; delete them first.", details=details)
        await _refuse_live_import(connection, name, None)
        keys = await connection.fetch(
            "SELECT package_key FROM dataset_versions WHERE dataset_id = $1 AND package_key IS NOT NULL",
            dataset["id"],
        )
        await connection.execute("DELETE FROM dataset_imports WHERE dataset_name = $1", name)
        await connection.execute("DELETE FROM datasets WHERE id = $1", dataset["id"])
    return [row["package_key"] for row in keys]


async def _dataset(connection: Any, caller: Caller, name: str) -> Any:
    row = await connection.fetchrow("SELECT id, org_id FROM datasets WHERE name = $1", name)
    if row is not None and row["org_id"] not in caller.org_ids:
        raise ApiError("dataset_name_taken", f"name: {name} is taken.", param="name")
    return row


async def _create_dataset(connection: Any, caller: Caller, name: str, org_id: str) -> Any:
    return await connection.fetchrow(
        "INSERT INTO datasets (id, name, org_id, owner_user_id, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, now(), now()) RETURNING id, org_id",
        str(uuid4()),
        name,
        org_id,
        caller.user_id,
    )


async def _retire_label(connection: Any, dataset_id: str, publication: Publication) -> None:
    await _refuse_live_import(connection, publication.name, publication.version)
    # An upload that was registered and never finished gives way.
    await connection.execute(
        "UPDATE dataset_imports SET status = 'FAILED', is_receiving = false, updated_at = now(), failure = $3"
        " WHERE dataset_name = $1 AND version = $2 AND is_receiving",
        publication.name,
        publication.version,
        {"code": "import_failed", "message": "replaced by a later publish", "failures": []},
    )
    await connection.execute(
        "UPDATE dataset_versions SET replaced_at = now(),"
        " state = CASE WHEN state = 'RECEIVING' THEN 'FAILED' ELSE state END"
        " WHERE dataset_id = $1 AND version = $2 AND replaced_at IS NULL",
        dataset_id,
        publication.version,
    )


async def _refuse_live_import(connection: Any, name: str, version: str | None) -> None:
    row = await connection.fetchrow(
        "SELECT version, status FROM dataset_imports WHERE dataset_name = $1"
        " AND ($2::text IS NULL OR version = $2) AND status IN ('QUEUED', 'RUNNING')"
        " AND NOT (is_receiving AND $2 IS NOT NULL) LIMIT 1",
        name,
        version,
    )
    if row is not None:
        raise ApiError(
            "dataset_import_in_progress",
            f"{name}@{row['version']} is being imported; wait for it to end.",
            details={"version": row["version"], "status": row["status"]},
        )


async def _create_import(connection: Any, caller: Caller, dataset: Any, publication: Publication) -> str:
    import_id, version_id, at = str(uuid4()), str(uuid4()), now()
    await connection.execute(
        "INSERT INTO dataset_versions (id, dataset_id, version, state, created_at, task_count,"
        " n_failed_tasks) VALUES ($1, $2, $3, $4, $5, 0, 0)",
        version_id,
        dataset["id"],
        publication.version,
        DatasetVersionState.RECEIVING.value,
        at,
    )
    await connection.execute(
        "INSERT INTO dataset_imports (id, owner_user_id, org_id, dataset_name, version, version_id, status,"
        " is_receiving, warnings, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, $5, $6, $7, true, '[]', $8, $8)",
        import_id,
        caller.user_id,
        dataset["org_id"],
        publication.name,
        publication.version,
        version_id,
        ImportStatus.QUEUED.value,
        at,
    )
    return import_id
