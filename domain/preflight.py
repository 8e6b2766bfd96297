"""Judging task.toml files before anything is uploaded, as a publish would (contract §3.4)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from domain.errors import TaskError
from domain.manifests import read_manifest
from domain.requests import RequestModel
from domain.support import refuse_unrunnable, verdicts
from domain.tasks import TaskFiles, parse_task

IMPORTER_VERSION = "1"
CHECKS = (
    "task.toml syntax",
    "task.toml keys",
    "environment declarations",
    "provider verdicts",
    "dataset.toml",
)
DEFERRED = (
    ("required files", "instruction.md, tests/test.sh, environment/"),
    ("manifest tasks and digests", "the task directories"),
    ("image build", "environment/Dockerfile"),
)


class PreflightTask(RequestModel):
    """One task directory: its name and its task.toml."""

    name: Annotated[str, Field(min_length=1, max_length=255)]
    task_toml: str


class PreflightRequest(RequestModel):
    """The body of `POST /api/datasets/preflight`."""

    tasks: Annotated[list[PreflightTask], Field(min_length=1, max_length=100_000)]
    dataset_toml: str | None = None


def preflight(request: PreflightRequest) -> dict[str, Any]:
    """DatasetPreflight; a refusal is the importer's own sentence."""
    tasks = [_judge(task) for task in request.tasks]
    n_ok = sum(task["ok"] for task in tasks)
    return {
        "importer_version": IMPORTER_VERSION,
        "checks": list(CHECKS),
        "deferred": [{"name": name, "reads": reads} for name, reads in DEFERRED],
        "manifest": None if request.dataset_toml is None else _judge_manifest(request.dataset_toml),
        "tasks": tasks,
        "tasks_total": len(tasks),
        "tasks_ok": n_ok,
        "tasks_refused": len(tasks) - n_ok,
    }


def _judge(asked: PreflightTask) -> dict[str, Any]:
    try:
        task = parse_task(asked.name, asked.task_toml, TaskFiles())
        refuse_unrunnable(task)
    except TaskError as error:
        return {
            "name": asked.name,
            "ok": False,
            "task_key": asked.name,
            "schema_version": None,
            "reason": error.message,
        }
    return {
        "name": asked.name,
        "ok": True,
        "task_key": task.declared_name or asked.name,
        "schema_version": task.schema_version,
        "providers": {name: verdict.model_dump() for name, verdict in verdicts(task).items()},
        "notes": [note.model_dump() for note in task.notes],
    }


def _judge_manifest(text: str) -> dict[str, Any]:
    try:
        manifest = read_manifest(text)
    except TaskError as error:
        return {"ok": False, "reason": error.message}
    return {
        "ok": True,
        "name": manifest.dataset.name,
        "short_name": manifest.short_name,
        "version": manifest.dataset.version,
        "task_count": len(manifest.tasks),
    }
