"""Publishing a directory, and following an import until its version is READY or FAILED."""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cli.cells import member, members, number, text
from cli.client import Client, Json, items_of, path
from cli.errors import CliError, Refused
from cli.output import hint, say
from cli.packing import pack_directory, packable_files
from cli.patience import read_patiently
from cli.transfers import Upload, send_archive
from domain.vocabulary import IMPORT_TERMINAL, DatasetVersionState, ImportStatus

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


@dataclass(frozen=True)
class NamedDirectory:
    """A directory as the dataset that it is published as: its name, and a label of its content."""

    directory: Path
    name: str
    version: str


def name_directory(directory: Path) -> NamedDirectory:
    """Named as the directory is, as far as a dataset can be. Raises `CliError` for what is none."""
    if not directory.is_dir():
        raise CliError(f"{directory} is no directory", code="invalid_input")
    name = re.sub(r"[^a-z0-9._-]+", "-", directory.resolve().name.lower()).strip("-._")
    return NamedDirectory(directory, name or "tasks", content_label(directory))


def content_label(directory: Path) -> str:
    """A version label that changes when a file does that would be packed."""
    digest = hashlib.sha256()
    for name in packable_files(directory):
        file = directory / name
        digest.update(f"{name}\0{file.stat().st_mode & 0o111:o}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:12]


def publish_once(client: Client, named: NamedDirectory, org: str | None) -> None:
    """Publish it unless this very content is; all that is said goes to stderr. Raises `CliError`."""
    if _is_ready(client, named):
        hint(f"{named.name}@{named.version} is published already")
        return
    accepted = publish_directory(client, named.directory, name=named.name, version=named.version, org=org)
    ended = follow_import(client, accepted, tell=hint)
    if ended.get("status") == ImportStatus.FAILED:
        report_import(client, ended)
    for task in members(
        client.get(path("/api/datasets/{}", named.name), {"version": named.version}).get("failed_tasks")
    ):
        hint(f"FAILED  {failure_line(task)}")


def _is_ready(client: Client, named: NamedDirectory) -> bool:
    try:
        detail = client.get(path("/api/datasets/{}", named.name), {"version": named.version})
    except Refused as error:
        if error.status != 404:
            raise
        return False
    return member(detail, "selected_version").get("state") == DatasetVersionState.READY


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
