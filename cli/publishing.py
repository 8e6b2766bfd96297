"""Publishing a directory, and following an import until its version is READY or FAILED."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cli.cells import member, members, number, text
from cli.client import Client, Json, items_of, path
from cli.errors import CliError
from cli.output import hint, say
from cli.packing import pack_directory
from cli.patience import read_patiently
from cli.transfers import Upload, send_archive
from domain.vocabulary import IMPORT_TERMINAL, ImportStatus

POLL_SEC = 1.0
SPOOL_BYTES = 8 << 20


def publish_directory(
    client: Client, directory: Path, *, name: str | None, version: str | None, org: str | None
) -> Json:
    """Pack and send a directory; the accepted import."""
    with tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES) as archive:
        pack_directory(directory, archive)
        size = archive.tell()
        upload = Upload(
            route="/api/datasets/publish",
            fields={"name": name, "version": version, "org": org},
            filename="corpus.tar.gz",
            archive=archive,
            size_bytes=size,
        )
        return send_archive(client, upload, _tell_progress)


def _tell_progress(sent: int, total: int) -> None:
    if sys.stderr.isatty():
        hint(f"sent {sent / 1e6:.1f} of {total / 1e6:.1f} MB")


def newest_import(client: Client, dataset: str) -> Json:
    """The caller's latest import of a dataset; raises `CliError` when there is none."""
    found = items_of(client.get("/api/datasets/imports", {"dataset": dataset, "limit": 1}))
    if not found:
        raise CliError(f"{dataset}: you have no import of this dataset", code="import_not_found")
    return found[0]


def follow_import(
    client: Client, job: Json, *, tell: Callable[[str], None], sleep: Callable[[float], None] = time.sleep
) -> Json:
    """Poll an import until it is COMPLETED or FAILED; `tell` gets a line whenever its state changes."""
    route = path("/api/datasets/imports/{}", str(job["id"]))
    told: str | None = None
    while True:
        line = import_line(job)
        if line != told:
            tell(line)
            told = line
        if job.get("status") in IMPORT_TERMINAL:
            return job
        sleep(POLL_SEC)
        job = read_patiently(lambda: client.get(route), sleep=sleep)


def import_line(job: Json) -> str:
    """`examples@1  RUNNING  building 3/8`; bytes that still arrive are `QUEUED (receiving)`."""
    status = text(job.get("status"))
    if job.get("receiving") is True:
        status = f"{status} (receiving)"
    parts = [f"{job.get('name')}@{job.get('version')}", status]
    progress = member(job, "progress")
    phase = next(iter(reversed(members(progress.get("phases")))), None)
    if phase is not None and status == ImportStatus.RUNNING:
        total = number(phase.get("total"))
        counts = f" {text(phase.get('done'))}/{text(phase.get('total'))}" if total else ""
        parts.append(f"{phase.get('name')}{counts}")
    return "  ".join(parts)


def report_import(client: Client, job: Json) -> None:
    """How an import ended: every task's outcome, and how many built. Raises `CliError` if it FAILED."""
    failure = member(job, "failure")
    for entry in members(failure.get("failures")):
        say(f"FAILED  {entry.get('task_name')}  {entry.get('error')}")
    if job.get("status") == ImportStatus.FAILED:
        message = f"{job.get('name')}@{job.get('version')}: {failure.get('message') or 'the import failed'}"
        raise CliError(message, code=str(failure.get("code") or "import_failed"))
    detail, tasks = read_version(client, str(job["name"]), str(job["version"]))
    for task in tasks:
        say(f"READY   {task.get('task_name')}")
    for task in members(detail.get("failed_tasks")):
        say(f"FAILED  {failure_line(task)}")
    for warning in members(job.get("warnings")):
        hint(f"warning: {warning.get('code')}: {text(warning.get('message'))}")
    version = member(detail, "selected_version")
    built, failed = number(version.get("task_count")) or 0, number(version.get("n_failed_tasks")) or 0
    name = f"{job['name']}@{job['version']}"
    say(f"{name} is {text(version.get('state'))}: {built:.0f} built, {failed:.0f} failed")


def failure_line(task: Json) -> str:
    """`name  code at step: message`."""
    failure = member(task, "failure")
    where = f" at {failure['step']}" if failure.get("step") else ""
    return f"{task.get('task_name')}  {failure.get('code')}{where}: {text(failure.get('message'))}"


def read_version(client: Client, name: str, version: str | None) -> tuple[Json, list[Json]]:
    """A dataset's detail at a version (the active one by default), and all of that version's tasks."""
    route = path("/api/datasets/{}", name)
    detail = client.get(route, {"version": version})
    return detail, list(_all_tasks(client, route, version, detail))


def _all_tasks(client: Client, route: str, version: str | None, detail: Json) -> Iterator[Json]:
    page = member(detail, "tasks")
    while True:
        yield from items_of(page)
        cursor = page.get("nextCursor")
        if not cursor:
            return
        page = member(client.get(route, {"version": version, "cursor": cursor}), "tasks")
