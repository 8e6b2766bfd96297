"""Dataset imports: unpack and parse the archive, build each task's image on its own, activate."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from temporalio import activity

from activities.archives import pack_tree, unpack_archive
from activities.corpus import Corpus, ReadTask, read_corpus
from activities.heartbeats import heartbeats
from activities.sandboxes.base import ImageRef, ImageRequest
from activities.signatures import (
    BUILD_TASK,
    FAIL_IMPORT,
    FIND_BUILDER,
    FINISH_IMPORT,
    UNPACK_DATASET,
    Builder,
    ImportEnd,
    ImportProblem,
    ImportRef,
    Nothing,
    ParsedDataset,
    TaskToBuild,
)
from activities.trial_context import Hands, StoredTask
from activities.verifier_image import ensure_verifier_image
from domain.errors import ArchiveError, BaseImageUnavailable, EvolveError, ImageBuildFailed, TaskError
from domain.support import verdicts
from domain.task_scalars import MAX_BUILD_SEC
from domain.tasks import Task
from domain.verifier_place import verifier_place
from domain.vocabulary import (
    DatasetImportPhase,
    DatasetVersionState,
    ImportStatus,
    ImportWarningCode,
    TaskBuildState,
    TaskBuildStep,
)
from store import import_record
from store.datasets import DatasetTask
from store.hosts import find_builder


class Imports:
    """The activities of `DatasetImportWorkflow`."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=UNPACK_DATASET.name)
    async def unpack(self, ref: ImportRef) -> ParsedDataset:
        """Unpack, parse, keep each task as a package. A corpus refused as a whole fails the import."""
        async with heartbeats():
            row = await self._import_row(ref.import_id)
            if row["version_id"] is None:
                raise EvolveError(f"import {ref.import_id} has no version")
            db = self._hands.db
            unpacker = import_record.Unpacker(ref.import_id, row["version_id"], activity.info().attempt)
            await import_record.start_phase(
                db, unpacker, DatasetImportPhase.EXTRACTING, state=DatasetVersionState.IMPORTING
            )
            try:
                tasks = await self._read(unpacker, row)
            except (TaskError, ArchiveError) as error:
                failure = {"code": error.code, "message": error.message, "failures": []}
                await import_record.fail_import(db, ref.import_id, failure, unpacker)
                return ParsedDataset(version_id=row["version_id"], tasks=[], is_refused=True)
            await import_record.start_phase(
                db,
                unpacker,
                DatasetImportPhase.BUILDING,
                total=len(tasks),
                state=DatasetVersionState.BUILDING,
            )
        return ParsedDataset(version_id=row["version_id"], tasks=tasks)

    async def _import_row(self, import_id: str) -> Any:
        pool = await self._hands.db.pool()
        row = await pool.fetchrow("SELECT * FROM dataset_imports WHERE id = $1", import_id)
        if row is None:
            raise EvolveError(f"import {import_id} was deleted", code="import_not_found")
        return row

    async def _read(self, unpacker: import_record.Unpacker, row: Any) -> list[TaskToBuild]:
        with tempfile.TemporaryDirectory(prefix="evolve-import-") as scratch:
            archive, root = Path(scratch) / "corpus.tar.gz", Path(scratch) / "corpus"
            with archive.open("wb") as file:
                async for chunk in self._hands.blobs.stream(row["archive_key"]):
                    file.write(chunk)
            await asyncio.to_thread(unpack_archive, archive, root, may_be_wrapped=True)
            await import_record.start_phase(self._hands.db, unpacker, DatasetImportPhase.PARSING)
            corpus = await asyncio.to_thread(read_corpus, root, row["dataset_name"], self._hands.capabilities)
            rows = [
                await self._store_task(row["version_id"], ordinal, task, Path(scratch))
                for ordinal, task in enumerate(corpus.tasks)
            ]
        await self._store_manifest(row["version_id"], corpus)
        await import_record.put_tasks(self._hands.db, unpacker, rows)
        return [
            TaskToBuild(
                version_id=row["version_id"],
                task_name=task.name,
                import_id=unpacker.import_id,
                build_timeout_sec=min(task.task.build_timeout_sec, MAX_BUILD_SEC),
            )
            for task in corpus.tasks
            if task.task is not None and task.refusal is None
        ]

    async def _store_task(self, version_id: str, ordinal: int, task: ReadTask, scratch: Path) -> DatasetTask:
        packed = await asyncio.to_thread(pack_tree, task.directory, scratch / "task.tar.gz")
        key = f"tasks/{packed.sha256}.tar.gz"
        await self._hands.blobs.put_file(key, scratch / "task.tar.gz")
        parsed = task.task
        return DatasetTask(
            version_id=version_id,
            task_name=task.name,
            ordinal=ordinal,
            state=(TaskBuildState.FAILED if task.refusal else TaskBuildState.PENDING).value,
            digest=task.digest,
            image_digest=task.image_digest,
            task=parsed.model_dump(mode="json") if parsed else None,
            verdicts=self._verdicts(parsed) if parsed else {},
            notes=[],
            images={},
            failure=_failure(task.refusal, TaskBuildStep.PARSE) if task.refusal else None,
            agent_timeout_sec=parsed.agent_timeout_sec if parsed else None,
            verifier_timeout_sec=parsed.verifier_timeout_sec if parsed else None,
            package_key=key,
            package_sha256=packed.sha256,
        )

    def _verdicts(self, task: Task) -> dict[str, dict[str, Any]]:
        """TaskProviderVerdict of contract 3.3 for each provider, as this host offers them."""
        answers = verdicts(task, self._hands.capabilities)
        return {name: verdict.model_dump() for name, verdict in answers.items()}

    async def _store_manifest(self, version_id: str, corpus: Corpus) -> None:
        if corpus.manifest is None:
            return
        manifest, dataset = corpus.manifest, corpus.manifest.dataset
        document = {
            "name": dataset.name,
            "version": dataset.version,
            "description": dataset.description,
            "authors": [{"name": author.name, "email": author.email} for author in dataset.authors],
            "keywords": list(dataset.keywords),
            "task_count": len(manifest.tasks),
        }
        pool = await self._hands.db.pool()
        await pool.execute("UPDATE dataset_versions SET manifest = $2 WHERE id = $1", version_id, document)
        await pool.execute(
            "UPDATE datasets SET description = coalesce(nullif($2, ''), description)"
            " WHERE id = (SELECT dataset_id FROM dataset_versions WHERE id = $1)",
            version_id,
            dataset.description,
        )

    @activity.defn(name=FIND_BUILDER.name)
    async def find_builder(self, build: TaskToBuild) -> Builder:
        """A host that lives, or else one that is away, and serves a provider that the task accepts."""
        stored = await self._hands.stored_task(build.version_id, build.task_name)
        answers = self._verdicts(stored.task)
        accepted = [name for name, verdict in answers.items() if verdict["ok"]]
        accepted.sort(key=lambda name: name != self._hands.default_provider)
        found = await find_builder(self._hands.db, accepted)
        return Builder(queue=found[0].follow_queue, provider=found[1]) if found else Builder()

    @activity.defn(name=BUILD_TASK.name)
    async def build(self, build: TaskToBuild) -> Nothing:
        """Build for the provider that this host was chosen for, else where it would run by default, else
        where it can; a failure is the task's own."""
        async with heartbeats():
            key = (build.version_id, build.task_name)
            stored = await self._hands.stored_task(*key)
            images: dict[str, Any] = {}
            refused: dict[str, Any] = {}
            failure: dict[str, Any] | None = None
            for name in self._order(stored, build.provider):
                try:
                    image = await self._build_on(name, stored, build.build_timeout_sec)
                    images[name] = {"id": image.id, "base_image_replaced": image.base_image_replaced}
                    failure = None
                    break
                except BaseImageUnavailable as error:
                    refused[name] = {"ok": False, "reason": error.message, "degrades_to": None}
                    failure = _failure(error, TaskBuildStep.IMAGE_BUILD)
                except (ImageBuildFailed, TaskError) as error:
                    failure = _failure(error, TaskBuildStep.IMAGE_BUILD)
                    break
            if not images and failure is None:
                failure = {
                    "code": "builder_unavailable",
                    "step": TaskBuildStep.IMAGE_BUILD.value,
                    "message": "no provider of this host can run the task",
                    "excerpt": None,
                }
            state = TaskBuildState.FAILED if failure else TaskBuildState.READY
            changes = {"state": state.value, "images": images, "verdicts": refused, "failure": failure}
            await import_record.record_build(
                self._hands.db, build.import_id, key, changes, was_built=bool(images)
            )
        return Nothing()

    def _order(self, stored: StoredTask, wanted: str) -> list[str]:
        """This host's providers that the task accepts, the one that is wanted and the default first."""
        answers = self._verdicts(stored.task)
        offered = [name for name in self._hands.providers if answers[name]["ok"]]
        return sorted(offered, key=lambda name: (name != wanted, name != self._hands.default_provider))

    async def _build_on(self, provider: str, stored: StoredTask, timeout_sec: float) -> ImageRef:
        task_dir = await self._hands.task_dir(stored)
        request = ImageRequest(
            installation_id=self._hands.installation_id,
            context_dir=task_dir / "environment",
            docker_image=stored.task.docker_image,
            context_digest=stored.image_digest,
            build_timeout_sec=timeout_sec,
        )
        sandboxes = self._hands.provider(provider)
        image = await sandboxes.ensure_image(request)
        if stored.task.verifier_mode == "separate":
            place = verifier_place(stored.task)
            if not place.is_tasks_image:
                limit_sec = min(place.build_timeout_sec, MAX_BUILD_SEC)
                await ensure_verifier_image(self._hands, stored, sandboxes, limit_sec)
            elif image.starts_service:
                raise TaskError(
                    "[verifier].environment_mode: the image's ENTRYPOINT starts a service, which a separate "
                    "verifier of the same image would start again: verify in shared mode, or give the "
                    "verifier its own tests/Dockerfile"
                )
        return image

    @activity.defn(name=FAIL_IMPORT.name)
    async def fail(self, problem: ImportProblem) -> ImportEnd:
        """The corpus could not be read for a reason of ours."""
        failure = {"code": "import_failed", "message": problem.message, "failures": []}
        await import_record.fail_import(self._hands.db, problem.import_id, failure)
        return ImportEnd(import_id=problem.import_id, status=ImportStatus.FAILED.value)

    @activity.defn(name=FINISH_IMPORT.name)
    async def finish(self, ref: ImportRef) -> ImportEnd:
        """READY and active, or FAILED."""
        row = await self._import_row(ref.import_id)
        warnings = await self._warnings(row["version_id"])
        status, ready, failed = await import_record.finish_import(self._hands.db, ref.import_id, warnings)
        return ImportEnd(import_id=ref.import_id, status=status, n_ready=ready, n_failed=failed)

    async def _warnings(self, version_id: str) -> list[dict[str, Any]]:
        pool = await self._hands.db.pool()
        rows = await pool.fetch("SELECT state, task FROM dataset_tasks WHERE version_id = $1", version_id)
        solved = [bool(row["task"] and row["task"]["has_solution"]) for row in rows]
        failed = sum(row["state"] == TaskBuildState.FAILED for row in rows)
        warnings: list[dict[str, Any]] = []
        if rows and not any(solved):
            warnings.append(
                {"code": ImportWarningCode.NO_SOLUTIONS_ARCHIVED, "message": "no task has a solution"}
            )
        elif not all(solved):
            message = f"{len(solved) - sum(solved)} of {len(rows)} tasks have no solution"
            warnings.append({"code": ImportWarningCode.PARTIAL_SOLUTIONS_ARCHIVED, "message": message})
        if failed:
            message = f"{failed} of {len(rows)} tasks failed to build"
            warnings.append({"code": ImportWarningCode.TASKS_FAILED_TO_BUILD, "message": message})
        return warnings


def _failure(error: EvolveError, step: TaskBuildStep) -> dict[str, Any]:
    """TaskBuildFailure of contract 3.3."""
    excerpt = error.excerpt if isinstance(error, ImageBuildFailed) else None
    return {"code": error.code, "step": step.value, "message": error.message, "excerpt": excerpt}
