"""Which directories of a corpus are tasks (contract 2.3, "Preflight collection rules"), pure over its paths.

Paths are POSIX, relative, of regular files; symlinks are neither files nor directories here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NoReturn

from pydantic import BaseModel, ConfigDict

from domain.errors import TaskError

__all__ = ["DatasetLayout", "TaskDirectory", "find_tasks"]


class TaskDirectory(BaseModel):
    """`prefix` is what precedes a task's own paths: empty or ending in a slash."""

    model_config = ConfigDict(frozen=True)

    name: str
    prefix: str

    def own_paths(self, paths: Collection[str]) -> frozenset[str]:
        """The task's files, relative to it."""
        return frozenset(path.removeprefix(self.prefix) for path in paths if path.startswith(self.prefix))


class DatasetLayout(BaseModel):
    """Tasks by name; the manifest that counts; and the folder whose plain files are dataset files."""

    model_config = ConfigDict(frozen=True)

    tasks: tuple[TaskDirectory, ...]
    manifest_path: str | None
    files_prefix: str


def find_tasks(paths: Collection[str], root_name: str) -> DatasetLayout:
    """The layout of a corpus. `root_name` names the task when the root itself is one.

    Raises `TaskError` (code `import_failed`) for an ambiguous layout, a directory without task.toml, or
    no task at all.
    """
    known = frozenset(paths)
    task_roots = {
        path.split("/")[0] for path in known if path.endswith("/task.toml") and path.count("/") == 1
    }
    has_tasks_dir = any(path.startswith("tasks/") for path in known)
    if "task.toml" in known:
        return _single_task(known, root_name, task_roots, has_tasks_dir)
    base = "tasks/" if has_tasks_dir else ""
    names = _child_directories(known, base)
    if not names:
        _refuse("the package holds no task: no directory with a task.toml")
    bare = [name for name in names if f"{base}{name}/task.toml" not in known]
    if bare:
        _refuse(f"{base}{bare[0]}/task.toml: missing (every directory beside the tasks must be one)")
    tasks = tuple(TaskDirectory(name=name, prefix=f"{base}{name}/") for name in names)
    return DatasetLayout(
        tasks=tasks, manifest_path=_manifest(known), files_prefix=_manifest_folder(known, base)
    )


def _single_task(
    known: Collection[str], root_name: str, task_roots: Collection[str], has_tasks_dir: bool
) -> DatasetLayout:
    if has_tasks_dir or task_roots:
        other = "tasks/" if has_tasks_dir else f"{min(task_roots)}/task.toml"
        _refuse(f"the layout is ambiguous: the root holds a task.toml and {other}")
    task = TaskDirectory(name=root_name, prefix="")
    return DatasetLayout(tasks=(task,), manifest_path=_manifest(known), files_prefix="")


def _child_directories(known: Collection[str], base: str) -> list[str]:
    """Names of the directories directly below `base` that are not hidden, sorted."""
    below = (path.removeprefix(base) for path in known if path.startswith(base))
    names = {path.split("/")[0] for path in below if "/" in path}
    return sorted(name for name in names if not name.startswith("."))


def _manifest(known: Collection[str]) -> str | None:
    """`tasks/dataset.toml` beats the root's."""
    return next((path for path in ("tasks/dataset.toml", "dataset.toml") if path in known), None)


def _manifest_folder(known: Collection[str], base: str) -> str:
    manifest = _manifest(known)
    return base if manifest is None else manifest.removesuffix("dataset.toml")


def _refuse(message: str) -> NoReturn:
    raise TaskError(message, code="import_failed")
