"""Datasets, versions, tasks and imports as the wire shows them (contract §3.3, §3.4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from domain.errors import ApiError
from domain.trials import wire_time
from domain.vocabulary import ImportStatus, TaskBuildState
from store.accounts import Caller
from store.database import Database
from store.job_reads import like_escape
from store.pages import PageRequest, page

_SUMMARY = """
SELECT d.*, to_jsonb(active) AS active, to_jsonb(latest) AS latest
FROM datasets d
LEFT JOIN dataset_versions active ON active.id = d.active_version_id
LEFT JOIN LATERAL (SELECT * FROM dataset_versions v WHERE v.dataset_id = d.id
                   ORDER BY v.created_at DESC, v.id LIMIT 1) latest ON true
"""
_LIST = f"""
{_SUMMARY} WHERE d.org_id = ANY($1) AND d.name > $2
  AND ($3::text IS NULL OR d.name ILIKE $3 OR d.description ILIKE $3)
ORDER BY d.name LIMIT $4
"""
_ONE = f"{_SUMMARY} WHERE d.name = $1 AND d.org_id = ANY($2)"
_VERSIONS = """
SELECT * FROM dataset_versions WHERE dataset_id = $1 AND (replaced_at IS NULL OR id = $2)
ORDER BY created_at DESC, id
"""
_TASKS = """
SELECT task_name, ordinal, agent_timeout_sec, verifier_timeout_sec, verdicts, notes,
       (task ->> 'gpus')::int AS gpus, task -> 'gpu_types' AS gpu_types
FROM dataset_tasks WHERE version_id = $1 AND state = 'READY' AND ordinal > $2 ORDER BY ordinal LIMIT $3
"""
_FAILED = """
SELECT task_name, failure FROM dataset_tasks WHERE version_id = $1 AND state = 'FAILED'
ORDER BY task_name LIMIT $2
"""
_IMPORTS = """
SELECT * FROM dataset_imports
WHERE owner_user_id = $1 AND ($2::text[] IS NULL OR status = ANY($2))
  AND ($3::text IS NULL OR dataset_name = $3)
  AND ($4::timestamptz IS NULL OR (created_at, id) < ($4, $5))
ORDER BY created_at DESC, id DESC LIMIT $6
"""

LIST_CURSOR = (str,)
TASKS_CURSOR = (int,)
IMPORTS_CURSOR = (datetime, str)


async def list_datasets(
    db: Database, caller: Caller, request: PageRequest, *, search: str | None
) -> dict[str, Any]:
    """A page of DatasetSummary, by name."""
    pool = await db.pool()
    (after,) = request.after or ("",)
    pattern = None if search is None else f"%{like_escape(search)}%"
    rows = await pool.fetch(_LIST, caller.org_ids, after, pattern, request.fetch)
    return page(rows, request, lambda row: (row["name"],), _summary_wire)


async def find_dataset(db: Database, caller: Caller, name: str) -> Any:
    """The dataset's row with `active` and `latest`; raises `dataset_not_found`."""
    pool = await db.pool()
    row = await pool.fetchrow(_ONE, name, caller.org_ids)
    if row is None:
        raise ApiError("dataset_not_found", f"No dataset {name}.")
    return row


async def find_version(db: Database, dataset: Any, version: str | None) -> Any:
    """The row of a label, or of the active version; raises `dataset_version_not_found`.

    None when no label is named and no version is active.
    """
    pool = await db.pool()
    if version is None:
        return await pool.fetchrow(
            "SELECT * FROM dataset_versions WHERE id = $1", dataset["active_version_id"]
        )
    row = await pool.fetchrow(
        "SELECT * FROM dataset_versions WHERE dataset_id = $1 AND version = $2 AND replaced_at IS NULL",
        dataset["id"],
        version,
    )
    if row is None:
        raise ApiError("dataset_version_not_found", f"{dataset['name']} has no version {version}.")
    return row


async def read_dataset(
    db: Database, caller: Caller, name: str, request: PageRequest, *, version: str | None = None
) -> dict[str, Any]:
    """DatasetDetail; `version` or the active one is the one whose tasks are paged."""
    dataset = await find_dataset(db, caller, name)
    selected = await find_version(db, dataset, version)
    pool = await db.pool()
    versions = await pool.fetch(_VERSIONS, dataset["id"], dataset["active_version_id"])
    return {
        **_summary_wire(dataset),
        "versions": [version_wire(row) for row in versions],
        "selected_version": None if selected is None else version_wire(selected),
        "tasks": await _task_page(db, selected, request),
        "failed_tasks": await _failed_tasks(db, selected, request.limit),
        "created_at": wire_time(dataset["created_at"]),
        "updated_at": wire_time(dataset["updated_at"]),
    }


async def read_task_build(
    db: Database, caller: Caller, name: str, version: str, task_name: str
) -> dict[str, Any]:
    """TaskBuild; raises `task_not_found` for an unknown task or one whose build has not settled."""
    dataset = await find_dataset(db, caller, name)
    selected = await find_version(db, dataset, version)
    pool = await db.pool()
    row = await pool.fetchrow(
        "SELECT task_name, state, failure FROM dataset_tasks WHERE version_id = $1 AND task_name = $2",
        selected["id"],
        task_name,
    )
    if row is None or row["state"] == TaskBuildState.PENDING:
        raise ApiError("task_not_found", f"{name}@{version} has no build outcome of a task {task_name}.")
    return {"task_name": row["task_name"], "state": row["state"], "failure": row["failure"]}


async def list_imports(
    db: Database,
    caller: Caller,
    request: PageRequest,
    *,
    statuses: Sequence[str] | None,
    dataset: str | None,
) -> dict[str, Any]:
    """A page of the caller's own DatasetImport, newest first."""
    pool = await db.pool()
    created_at, import_id = request.after or (None, None)
    rows = await pool.fetch(_IMPORTS, caller.user_id, statuses, dataset, created_at, import_id, request.fetch)
    return page(rows, request, lambda row: (row["created_at"], row["id"]), import_wire)


async def read_import(db: Database, caller: Caller, import_id: str) -> dict[str, Any]:
    """DatasetImport of the caller's own; raises `import_not_found`."""
    pool = await db.pool()
    row = await pool.fetchrow(
        "SELECT * FROM dataset_imports WHERE id = $1 AND owner_user_id = $2", import_id, caller.user_id
    )
    if row is None:
        raise ApiError("import_not_found", f"No import {import_id}.")
    return import_wire(row)


def version_wire(row: Any) -> dict[str, Any]:
    """DatasetVersion from its row, or from the row as JSON."""
    at = row["created_at"]
    return {
        "version": row["version"],
        "state": row["state"],
        "created_at": wire_time(datetime.fromisoformat(at) if isinstance(at, str) else at),
        "task_count": row["task_count"],
        "n_failed_tasks": row["n_failed_tasks"],
        "manifest": row["manifest"],
        "source": row["source"],
    }


def import_wire(row: Any) -> dict[str, Any]:
    """DatasetImport from its row."""
    return {
        "id": row["id"],
        "status": row["status"],
        "name": row["dataset_name"],
        "version": row["version"],
        "failure": row["failure"] if row["status"] == ImportStatus.FAILED else None,
        "receiving": row["is_receiving"],
        "warnings": row["warnings"],
        "progress": row["progress"],
        "task_count": row["task_count"],
        "created_at": wire_time(row["created_at"]),
        "updated_at": wire_time(row["updated_at"]),
    }


def _summary_wire(row: Any) -> dict[str, Any]:
    return {
        "name": row["name"],
        "title": row["title"],
        "description": row["description"],
        "active_version": None if row["active"] is None else version_wire(row["active"]),
        "latest_version": None if row["latest"] is None else version_wire(row["latest"]),
        "upstream": None,
    }


async def _task_page(db: Database, version: Any, request: PageRequest) -> dict[str, Any]:
    if version is None:
        return {"items": [], "nextCursor": None, "hasMore": False}
    pool = await db.pool()
    (after,) = request.after or (-1,)
    rows = await pool.fetch(_TASKS, version["id"], after, request.fetch)
    return page(rows, request, lambda row: (row["ordinal"],), _task_wire)


def _task_wire(row: Any) -> dict[str, Any]:
    return {
        "task_name": row["task_name"],
        "agent_timeout_sec": row["agent_timeout_sec"],
        "verifier_timeout_sec": row["verifier_timeout_sec"],
        "providers": row["verdicts"],
        "gpus": row["gpus"] or 0,
        "gpu_types": row["gpu_types"] or None,
        "notes": row["notes"],
    }


async def _failed_tasks(db: Database, version: Any, limit: int) -> list[dict[str, Any]]:
    """Without the excerpt of the build log, which only the build route carries."""
    if version is None:
        return []
    pool = await db.pool()
    return [
        {"task_name": row["task_name"], "failure": {**row["failure"], "excerpt": None}}
        for row in await pool.fetch(_FAILED, version["id"], limit)
    ]
