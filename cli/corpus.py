"""A dataset directory judged before it is uploaded, by the server's own rules (contract §2.3, §6.7, §6.8).

Only what the files here decide: whether images build, and whether pinned digests hold, is the server's
to say.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from cli.errors import CliError
from cli.packing import packable_files
from domain.dataset_layout import DatasetLayout, TaskDirectory, find_tasks
from domain.errors import TaskError
from domain.manifests import Manifest, read_manifest
from domain.support import refuse_unrunnable, verdicts
from domain.tasks import Task, TaskFiles, parse_task


@dataclass(frozen=True)
class TaskVerdict:
    """`reason` says why a task is refused, None for one that is not. `providers` can run it."""

    name: str
    reason: str | None
    providers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return self.reason is None


@dataclass(frozen=True)
class CorpusVerdict:
    """A directory's tasks, by name, and its manifest if it has one."""

    tasks: tuple[TaskVerdict, ...]
    manifest: Manifest | None

    @property
    def refused(self) -> list[TaskVerdict]:
        return [task for task in self.tasks if not task.ok]


def check_corpus(directory: Path) -> CorpusVerdict:
    """Judge every task. Raises `TaskError` for a corpus that is refused as a whole."""
    paths = _paths(directory)
    layout = find_tasks(paths, directory.resolve().name)
    manifest = _manifest(directory, layout)
    return CorpusVerdict(
        tasks=tuple(_judge(directory, task, task.own_paths(paths)) for task in layout.tasks),
        manifest=manifest,
    )


def has_manifest(directory: Path) -> bool:
    """Whether name and version may be left to the corpus."""
    return any((directory / place).is_file() for place in ("dataset.toml", "tasks/dataset.toml"))


def _paths(directory: Path) -> list[str]:
    if not directory.is_dir():
        raise CliError(f"{directory} is not a directory", code="invalid_input")
    return packable_files(directory)


def _manifest(directory: Path, layout: DatasetLayout) -> Manifest | None:
    if layout.manifest_path is None:
        return None
    return read_manifest((directory / layout.manifest_path).read_bytes())


def _judge(directory: Path, task: TaskDirectory, own: Collection[str]) -> TaskVerdict:
    try:
        parsed = _parse(directory / task.prefix, task.name, frozenset(own))
        refuse_unrunnable(parsed)
    except TaskError as error:
        return TaskVerdict(task.name, error.message)
    answers = verdicts(parsed)
    return TaskVerdict(
        task.name,
        reason=None,
        providers=tuple(name for name, verdict in answers.items() if verdict.ok),
        notes=tuple(_notes(parsed)),
    )


def _parse(root: Path, name: str, own: frozenset[str]) -> Task:
    files = TaskFiles.of(own, lambda path: (root / path).read_bytes())
    return parse_task(name, (root / "task.toml").read_bytes(), files)


def _notes(task: Task) -> list[str]:
    notes = [f"{key}: no schema knows this key; it is kept and has no effect" for key in task.unknown_keys]
    if not task.has_solution:
        notes.append("solution/solve.sh: missing; the oracle agent cannot run it")
    return notes
