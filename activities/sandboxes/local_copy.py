"""COPY of a Dockerfile: which files of the context go where, as docker would have it."""

from __future__ import annotations

import io
import re
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from activities.sandboxes.docker_context import context_files
from activities.sandboxes.dockerfile import FILE, CopyFiles
from domain.errors import TaskError


@dataclass
class Copied:
    """A tar relative to "/", and the paths in it; `has_folder` says that a folder's contents are."""

    tar: bytes
    has_folder: bool = False
    paths: list[str] = field(default_factory=list[str])


class Context:
    """The task's `environment/`, without what its `.dockerignore` names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = context_files(folder)

    def copy(self, step: CopyFiles, *, target_is_folder: bool) -> Copied:
        """What a COPY brings. Raises `TaskError` where a source is missing or leaves the context."""
        packed = io.BytesIO()
        copied = Copied(b"")
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for source in step.sources:
                for name in self._matches(step, source):
                    is_folder = step.target.endswith("/") or target_is_folder
                    self._add(tar, copied, step, name, is_folder)
        copied.tar = packed.getvalue()
        return copied

    def _matches(self, step: CopyFiles, source: str) -> list[str]:
        pattern = PurePosixPath("/", source).relative_to("/")
        if ".." in pattern.parts:
            raise TaskError(f"{FILE} line {step.line}: {source!r} leaves the task", param=FILE)
        if str(pattern) == ".":
            return ["."]
        matcher = _glob(str(pattern))
        found = [name for name in self._names if matcher.fullmatch(name)]
        if not found:
            raise TaskError(f"{FILE} line {step.line}: there is no {source!r} in environment/", param=FILE)
        return found

    def _add(self, tar: tarfile.TarFile, copied: Copied, step: CopyFiles, name: str, is_folder: bool) -> None:
        """A folder's contents, or one file under its own or the target's name."""
        place = self._real(step, name)
        target = PurePosixPath(step.target).relative_to("/")
        if not place.is_dir():
            self._add_entry(
                tar, copied, step, place, target / PurePosixPath(name).name if is_folder else target
            )
            return
        folder = place.relative_to(self._folder.resolve()).as_posix()
        for each in self._names:
            if folder == "." or each.startswith(f"{folder}/"):
                inner = PurePosixPath(each).relative_to(folder)
                self._add_entry(tar, copied, step, self._folder / each, target / inner)

    def _real(self, step: CopyFiles, name: str) -> Path:
        place = (self._folder / name).resolve()
        if not place.is_relative_to(self._folder.resolve()):
            raise TaskError(f"{FILE} line {step.line}: the link {name!r} leaves the task", param=FILE)
        return place

    def _add_entry(
        self, tar: tarfile.TarFile, copied: Copied, step: CopyFiles, place: Path, target: PurePosixPath
    ) -> None:
        entry = tar.gettarinfo(place, arcname=str(target))
        if entry is None:  # a socket
            return
        if entry.islnk():  # a second name of a file: its content again
            entry.type, entry.size = tarfile.REGTYPE, place.stat().st_size
        if step.mode is not None and not entry.issym():
            entry.mode = step.mode
        copied.paths.append(f"/{target}")
        if not entry.isreg():
            tar.addfile(entry)
            return
        with place.open("rb") as content:
            tar.addfile(entry, content)


def _glob(pattern: str) -> re.Pattern[str]:
    """Docker's patterns: `*` and `?` stay within a folder, `[a-z]` and `[^a]` are sets."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        end = pattern.find("]", at + 2)
        if char == "[" and end > 0:
            parts.append(pattern[at : end + 1])
            at = end
        elif char == "\\" and at + 1 < len(pattern):
            at += 1
            parts.append(re.escape(pattern[at]))
        else:
            parts.append({"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char)))
        at += 1
    return re.compile("".join(parts))
