"""Build a download once, so that its length and digest are known before its first byte.

Everything goes through files of a scratch directory: neither a job's records nor what its trials kept
are ever in memory as a whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from temporalio import activity

from activities.archives import PackedArchive, pack_tree
from activities.failures import is_transient
from activities.heartbeats import heartbeats
from activities.signatures import BUILD_ARCHIVE, ArchiveRef, Nothing
from activities.trial_context import Hands
from domain import layouts
from domain.errors import EvolveError
from domain.jobs import JobPlan
from domain.layout_records import (
    DownloadedJob,
    DownloadedTask,
    DownloadedTrial,
    JobGroupSums,
    TrialVerdict,
    trial_lock,
    verdict_of,
)
from domain.layouts import LoggedEvent
from domain.stats import GroupSums, JobTotals
from domain.trials import Document, TrialColumns
from domain.vocabulary import JobStatus, TrialStatus
from store import archives

FETCHES_AT_ONCE = 8
PACKED = "archive.tar.gz"


class Archives:
    """`build_archive`: the same stored data gives the same bytes, so a repeat changes nothing."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=BUILD_ARCHIVE.name)
    async def build(self, ref: ArchiveRef) -> Nothing:
        """Pack, store, then make it visible. What cannot be built is marked failed and raised."""
        async with heartbeats():
            try:
                await self._build(ref)
            except Exception as error:
                if not is_transient(error):
                    await archives.mark_failed(self._hands.db, ref.kind, ref.subject_id, str(error))
                raise
        return Nothing()

    async def _build(self, ref: ArchiveRef) -> None:
        db, blobs = self._hands.db, self._hands.blobs
        edition = await archives.edition_of(db, ref.kind, ref.subject_id)
        if edition is None:
            raise EvolveError(
                f"{ref.kind} {ref.subject_id} does not exist or was deleted", code=f"{ref.kind}_not_found"
            )
        key = archives.blob_key(ref.kind, ref.subject_id, edition)
        scratch = Path(tempfile.mkdtemp(prefix="evolve-archive-"))
        try:
            packed = await self._pack(ref, scratch)
            await blobs.put_file(key, scratch / PACKED)
        finally:
            # A large job's scratch files take longer to remove than a heartbeat may be late.
            await asyncio.to_thread(shutil.rmtree, scratch, ignore_errors=True)
        blob = (key, packed.sha256, packed.length)
        superseded = await archives.mark_ready(db, ref.kind, ref.subject_id, blob)
        if superseded is not None:
            await blobs.delete(superseded)

    async def _pack(self, ref: ArchiveRef, scratch: Path) -> PackedArchive:
        folder = _Folder(self._hands, scratch)
        if ref.kind == "job":
            await folder.lay_job(ref.subject_id)
        else:
            await folder.lay_one_trial(ref.subject_id)
        return await asyncio.to_thread(pack_tree, folder.entries, scratch / PACKED)


class _Folder:
    """Lays files under their archive names. `entries` maps archive name → file of the scratch directory."""

    def __init__(self, hands: Hands, scratch: Path) -> None:
        self._db = hands.db
        self._blobs = hands.blobs
        self._scratch = scratch
        self._fetches = asyncio.Semaphore(FETCHES_AT_ONCE)
        self.entries: dict[str, Path] = {}

    async def lay_job(self, job_id: str) -> None:
        job = await self._read_job(job_id)
        root = layouts.job_folder(job_id)
        verdicts: list[TrialVerdict] = []
        locks: list[Document] = []
        async for rows in archives.read_trials(self._db, job_id):
            for trial in await self._lay_trials(job.plan, rows, f"{root}/"):
                verdicts.append(verdict_of(trial))
                lock = trial_lock(job.plan, trial)
                if lock is not None:
                    locks.append(lock)
        self._write_all(f"{root}/", layouts.job_records(job, verdicts, locks))
        with self._new_file(f"{root}/{layouts.JOB_LOG}").open("wb") as log:
            async for row in archives.stream_events(self._db, job_id):
                log.write(layouts.log_line(_event(row)))

    async def lay_one_trial(self, trial_id: str) -> None:
        row = await archives.read_trial(self._db, trial_id)
        job = None if row is None else await archives.read_job(self._db, row["job_id"])
        if job is None:
            raise EvolveError(f"trial {trial_id} was deleted", code="trial_not_found")
        await self._lay_trials(JobPlan.model_validate(job["plan"]), [row], "")

    async def _read_job(self, job_id: str) -> DownloadedJob:
        row = await archives.read_job(self._db, job_id)
        if row is None:
            raise EvolveError(f"job {job_id} was deleted", code="job_not_found")
        status = JobStatus(row["status"])
        if not status.is_terminal:
            raise EvolveError(f"job {job_id} is {status}", code="job_not_terminal")
        groups = await archives.read_groups(self._db, job_id)
        return DownloadedJob(
            plan=JobPlan.model_validate(row["plan"]),
            org=row["org"],
            status=status,
            by_status=row["by_status"],
            totals=JobTotals(**row["totals"]),
            groups={group["evals_key"]: _group(group) for group in groups},
            started_at=row["started_at"],
            updated_at=row["updated_at"],
            finished_at=row["finished_at"],
        )

    async def _lay_trials(self, plan: JobPlan, rows: list[Any], prefix: str) -> list[DownloadedTrial]:
        trials = [_trial(plan, row) for row in rows]
        folders = {trial.columns.id: f"{prefix}{trial.name}/" for trial in trials}
        files = _by_trial(await archives.read_files(self._db, list(folders)))
        events: dict[str, list[LoggedEvent]] = defaultdict(list)
        for row in await archives.read_trial_events(self._db, plan.job_id, list(folders)):
            events[row["payload"]["trial_id"]].append(_event(row))
        for trial in trials:
            folder, kept = folders[trial.columns.id], files[trial.columns.id]
            names = layouts.kept_names(kept)
            records = layouts.trial_records(plan, trial, names, events[trial.columns.id])
            self._write_all(folder, records)
            await asyncio.gather(*(self._fetch(f"{folder}{path}", kept[path]) for path in names.laid))
        await self._lay_traces(folders)
        return trials

    async def _lay_traces(self, folders: Mapping[str, str]) -> None:
        """A trace that has no event is an absent file. `folders`: by trial id."""
        async for rows in archives.stream_traces(self._db, list(folders)):
            for trial_id, events in groupby(rows, key=lambda row: row["trial_id"]):
                name = f"{folders[trial_id]}{layouts.TRACE}"
                with (self.entries.get(name) or self._new_file(name)).open("ab") as file:
                    file.writelines(map(layouts.trace_line, events))

    def _write_all(self, prefix: str, files: Mapping[str, bytes]) -> None:
        for name, content in files.items():
            self._new_file(f"{prefix}{name}").write_bytes(content)

    async def _fetch(self, name: str, kept: Any) -> None:
        """A kept file from its blob, checked: a damaged one fails the archive, by name."""
        target, digest = self._new_file(name), hashlib.sha256()
        async with self._fetches:
            try:
                with target.open("wb") as file:
                    async for chunk in self._blobs.stream(kept["blob_key"]):
                        digest.update(chunk)
                        file.write(chunk)
            except FileNotFoundError:
                raise EvolveError(f"{name}: its blob is gone", code="package_missing") from None
        if digest.hexdigest() != kept["sha256"]:
            raise EvolveError(f"{name}: its blob is damaged", code="package_corrupt")
        target.chmod(kept["mode"])

    def _new_file(self, name: str) -> Path:
        self.entries[name] = self._scratch / str(len(self.entries))
        return self.entries[name]


def _trial(plan: JobPlan, row: Any) -> DownloadedTrial:
    status = TrialStatus(row["status"])
    if not status.is_terminal:
        raise EvolveError(f"trial {row['id']} is {status}", code="trial_not_settled")
    return DownloadedTrial(
        columns=TrialColumns(
            id=row["id"],
            job_id=row["job_id"],
            task_name=row["task_name"],
            source=row["source"],
            attempt=row["attempt"],
            status=status,
            reward=row["reward"],
            phase=None,
            n_retries=row["n_retries"],
            retries=row["retries"],
            sandbox_id=row["sandbox_id"],
            has_files=False,
            started_at=row["started_at"],
            finished_at=row["finished_at"],
        ),
        attempt_number=row["attempt_number"],
        arm=plan.arms[row["arm_index"]],
        evals_key=row["evals_key"],
        result=row["result"],
        task=DownloadedTask(
            dataset_version=row["dataset_version"],
            digest=row["task_digest"],
            artifacts=tuple((entry["source"], entry["destination"]) for entry in row["artifacts"] or ()),
        ),
    )


def _group(row: Any) -> JobGroupSums:
    sums = GroupSums(**{name: row[name] for name in GroupSums.model_fields})
    return JobGroupSums(sums, row["pass_at_k"])


def _event(row: Any) -> LoggedEvent:
    return LoggedEvent(row["at"], row["type"], row["payload"])


def _by_trial(rows: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Rows of kept files by path, by trial."""
    files: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in rows:
        files[row["trial_id"]][row["path"]] = row
    return files
