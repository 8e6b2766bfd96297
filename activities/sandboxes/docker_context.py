"""A build context as the docker command line would send it: a tar without what `.dockerignore` names."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

DOCKERFILE = "Dockerfile"
DOCKERIGNORE = ".dockerignore"


def write_context(context_dir: Path, target: IO[bytes]) -> None:
    """Write the context's tar: sorted, owned by root, without times, so that equal trees are equal bytes."""
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in context_files(context_dir):
            member = tar.gettarinfo(context_dir / name, arcname=name)
            if member is None:  # a socket
                continue
            member.uid = member.gid = member.mtime = 0
            member.uname = member.gname = ""
            if member.isreg():
                with (context_dir / name).open("rb") as source:
                    tar.addfile(member, source)
            else:
                tar.addfile(member)


def context_files(context_dir: Path) -> list[str]:
    """Sorted relative names of what is sent: folders, files and links. Links are never followed."""
    ignore = read_dockerignore(context_dir / DOCKERIGNORE)
    kept = [name for name in _walk(context_dir) if not ignore.excludes(name)]
    folders = {str(parent) for name in kept for parent in PurePosixPath(name).parents} - {"."}
    return sorted({*kept, *folders})


def _walk(context_dir: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(context_dir):
        for name in (*folders, *files):
            yield (Path(folder) / name).relative_to(context_dir).as_posix()


class Dockerignore:
    """Ordered patterns; the last one that matches a path or a folder above it decides."""

    def __init__(self, patterns: list[str]) -> None:
        self._rules = [(not each.startswith("!"), _matcher(each.removeprefix("!"))) for each in patterns]

    def excludes(self, name: str) -> bool:
        if name in (DOCKERFILE, DOCKERIGNORE):
            return False
        above = [name, *(str(parent) for parent in PurePosixPath(name).parents)][:-1]
        excluded = False
        for excludes, matcher in self._rules:
            if excludes != excluded and any(matcher.fullmatch(each) for each in above):
                excluded = excludes
        return excluded


def read_dockerignore(path: Path) -> Dockerignore:
    """Absent is empty. A line that starts with # is a comment; blanks around a line do not count."""
    lines = path.read_text(encoding="utf-8-sig").splitlines() if path.is_file() else []
    return Dockerignore([line.strip() for line in lines if line.strip() and not line.startswith("#")])


def _matcher(pattern: str) -> re.Pattern[str]:
    """Go's `filepath.Match` plus `**`, anchored at the context's root (docs.docker.com, .dockerignore)."""
    clean = os.path.normpath(pattern.strip().lstrip("/"))
    translated = ""
    position = 0
    while position < len(clean):
        rest = clean[position:]
        piece, length = _translate(rest)
        translated += piece
        position += length
    return re.compile(translated, re.DOTALL)


def _translate(rest: str) -> tuple[str, int]:
    """The regular expression for the pattern's next element, and how many characters that element has."""
    if rest.startswith("**/"):
        return "(?:.*/)?", 3
    if rest.startswith("**"):
        return ".*", 2
    if rest[0] == "*":
        return "[^/]*", 1
    if rest[0] == "?":
        return "[^/]", 1
    if rest[0] == "[" and (end := rest.find("]", 2)) > 0:
        return "[" + rest[1:end].replace("\\", "\\\\") + "]", end + 1
    if rest[0] == "\\" and len(rest) > 1:
        return re.escape(rest[1]), 2
    return re.escape(rest[0]), 1
