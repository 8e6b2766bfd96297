"""Which tasks of a dataset version a job runs: includes, minus excludes, then a cap (contract §6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from domain.errors import ApiError

_GLOB_CHARACTERS = frozenset("*?[")


@dataclass(frozen=True)
class SelectableTask:
    """A task of a version as selection sees it. `refusals` maps a provider to why it cannot run there."""

    name: str
    is_ready: bool
    failure: str | None = None
    refusals: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class TaskFilter:
    """The filters of one dataset selector; empty includes take every task."""

    task_names: tuple[str, ...] = ()
    exclude_task_names: tuple[str, ...] = ()
    n_tasks: int | None = None


@dataclass(frozen=True)
class TaskSelection:
    """`tasks` run. `n_matched` READY tasks matched before the cap; `failed` matched but never built."""

    tasks: tuple[SelectableTask, ...]
    n_matched: int
    failed: tuple[str, ...]


def is_glob(pattern: str) -> bool:
    """Whether a name asks for more than itself; a literal name must exist and must have been built."""
    return not _GLOB_CHARACTERS.isdisjoint(pattern)


def select_tasks(tasks: Sequence[SelectableTask], wanted: TaskFilter, *, param: str) -> TaskSelection:
    """The selection, in the order of `tasks`.

    Raises `unknown_task_names` and `task_failed_to_build` for names spelled out, and `no_tasks` when
    nothing is left. `param` is the selector's body path.
    """
    _refuse_unknown(tasks, wanted, param)
    _refuse_named_failures(tasks, wanted, param)
    matched = [task for task in tasks if _matches(task.name, wanted)]
    ready = [task for task in matched if task.is_ready]
    if not ready:
        raise ApiError("no_tasks", f"{param}: the filters leave no task to run.", param=param)
    chosen = ready if wanted.n_tasks is None else ready[: wanted.n_tasks]
    failed = tuple(sorted(task.name for task in matched if not task.is_ready))
    return TaskSelection(tuple(chosen), len(ready), failed)


def exclusion_note(n_ran: int, n_matched: int, n_failed: int) -> str:
    """The sentence a job says about tasks that its selection lost to failed builds (contract §6.7)."""
    if n_ran == n_matched:
        return f"ran {n_ran} of {n_matched + n_failed} tasks; {n_failed} failed to build"
    return (
        f"the selection matched {n_matched + n_failed} tasks; {n_failed} failed to build; "
        f"{n_ran} ran under the n_tasks cap"
    )


def _matches(name: str, wanted: TaskFilter) -> bool:
    if wanted.task_names and not _matches_any(name, wanted.task_names):
        return False
    return not _matches_any(name, wanted.exclude_task_names)


def _matches_any(name: str, patterns: Iterable[str]) -> bool:
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def _refuse_unknown(tasks: Sequence[SelectableTask], wanted: TaskFilter, param: str) -> None:
    known = {task.name for task in tasks}
    for member, patterns in (
        ("task_names", wanted.task_names),
        ("exclude_task_names", wanted.exclude_task_names),
    ):
        unknown = [name for name in patterns if not is_glob(name) and name not in known]
        if unknown:
            raise ApiError(
                "unknown_task_names",
                f"{param}.{member}: no such task: {', '.join(unknown[:10])}.",
                param=f"{param}.{member}",
                details={"unknown_task_names": unknown},
            )


def _refuse_named_failures(tasks: Sequence[SelectableTask], wanted: TaskFilter, param: str) -> None:
    named = {name for name in wanted.task_names if not is_glob(name)}
    excluded = wanted.exclude_task_names
    failed = [
        {"task_name": task.name, "reason": task.failure or "the build failed"}
        for task in tasks
        if task.name in named and not task.is_ready and not _matches_any(task.name, excluded)
    ]
    if failed:
        names = ", ".join(entry["task_name"] for entry in failed[:10])
        raise ApiError(
            "task_failed_to_build",
            f"{param}.task_names: named tasks that failed to build: {names}.",
            param=f"{param}.task_names",
            details={"failed_tasks": failed},
        )
