"""Content digests of contract 6.7, spelled `sha256:<64 lowercase hex>`.

This module imports pathspec beside pydantic: the digest is defined by PathSpec's own gitignore semantics
(which differ from Git's in directory re-inclusion), it is pure, and a copy of it would only drift.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from pathspec import PathSpec

from domain.errors import TaskError

__all__ = ["content_paths", "file_digest", "task_content_digest"]

_ROOT_FILES = frozenset({"task.toml", "instruction.md", "README.md", "trajectory.json"})
_TREES = frozenset({"environment", "tests", "solution", "steps"})
_DEFAULT_IGNORES = ("__pycache__/", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")


def file_digest(data: bytes) -> str:
    """The plain SHA-256 of a file's bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def content_paths(paths: Iterable[str], gitignore: str | None) -> list[str]:
    """Those of a task's POSIX-relative file paths that its digest covers, sorted.

    `gitignore` is the text of the task's own .gitignore, None when there is none (the default patterns
    then apply). Raises `TaskError` for a pattern that cannot be read.
    """
    lines = _DEFAULT_IGNORES if gitignore is None else gitignore.splitlines()
    try:
        ignored = PathSpec.from_lines("gitignore", lines)
    except ValueError as error:
        raise TaskError(f".gitignore: {error}") from None
    return sorted(path for path in paths if _is_content(path) and not ignored.match_file(path))


def task_content_digest(file_digests: Mapping[str, str], gitignore: str | None) -> str:
    """The digest of a task from path → file digest of its files (more may be given than it covers).

    A file digest is SHA-256 in lowercase hex, with or without the `sha256:` prefix.
    """
    outer = hashlib.sha256()
    for path in content_paths(file_digests, gitignore):
        outer.update(f"{path}\0{file_digests[path].removeprefix('sha256:')}\n".encode())
    return f"sha256:{outer.hexdigest()}"


def _is_content(path: str) -> bool:
    parts = path.split("/")
    if any(part.startswith("._") and part != "._" for part in parts):
        return False
    return path in _ROOT_FILES if len(parts) == 1 else parts[0] in _TREES
