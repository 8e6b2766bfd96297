"""Trees of an agent's box as one tar whose names are places in a box. All of it blocks: for a thread.

Modes, empty folders and links are kept, owners are not. A link is carried only when it leads to what is
carried too: one that led elsewhere would show the verifier its own files as the agent's work.
"""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from domain.tasks import UNCARRIED_PATHS

SourceType = Literal["file", "directory"]


def is_excluded(name: str, patterns: Sequence[str]) -> bool:
    """As `tar --exclude`: a pattern matches from any part of the path on, and all that is below it."""
    parts = PurePosixPath(name).parts
    starts = [parts[begin:end] for end in range(1, len(parts) + 1) for begin in range(end)]
    return any(fnmatchcase("/".join(each), pattern) for each in starts for pattern in patterns)


class ArtifactTar:
    """Written to `target`, which is complete after `close`. Of two entries at one place the first stays."""

    def __init__(self, target: Path) -> None:
        self._tar = tarfile.open(target, "w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - `close` closes it
        self._places: set[str] = set()
        self._links: list[tarfile.TarInfo] = []
        self._sources: list[str] = []
        self.left_out: list[str] = []

    def add(self, part: Path, source: str, exclude: Sequence[str]) -> SourceType | None:
        """Add the tree or file that stood at `source`, as a box gave it; None when it holds nothing."""
        self._sources.append(source)
        kind: SourceType | None = None
        with tarfile.open(part) as tar:
            for member in tar:
                name = posixpath.normpath(member.name.lstrip("/") or ".")
                kind = kind or ("directory" if member.isdir() else "file")
                place = posixpath.normpath(posixpath.join(source, name)) if kind == "directory" else source
                if name.startswith("..") or _is_uncarried(place):
                    self.left_out.append(f"{place}: not carried")
                elif name == "." or kind == "file" or not is_excluded(name, exclude):
                    self._add_member(tar, member, place)
        return kind

    def close(self) -> None:
        """Links come last, so that nothing is ever unpacked through one."""
        for link in self._links:
            if f"/{link.name}" in self._places:
                continue
            if self._leads_inside(link):
                self._tar.addfile(link)
            else:
                self.left_out.append(f"/{link.name}: a link to {link.linkname}, which is not carried")
        self._tar.close()

    def _add_member(self, tar: tarfile.TarFile, member: tarfile.TarInfo, place: str) -> None:
        entry = tarfile.TarInfo(place.lstrip("/"))
        entry.mode, entry.mtime = member.mode & 0o777, int(member.mtime)
        if member.issym():
            entry.type, entry.linkname = tarfile.SYMTYPE, member.linkname
            self._links.append(entry)
        elif place in self._places:
            return
        elif member.isdir():
            entry.type = tarfile.DIRTYPE
            self._put(entry, place)
        elif member.isreg() or member.islnk():
            self._add_file(tar, member, entry, place)
        else:
            self.left_out.append(f"{place}: no file, folder or link")

    def _add_file(
        self, tar: tarfile.TarFile, member: tarfile.TarInfo, entry: tarfile.TarInfo, place: str
    ) -> None:
        try:
            content = tar.extractfile(member)
            entry.size = (tar.getmember(member.linkname) if member.islnk() else member).size
        except KeyError:
            self.left_out.append(f"{place}: a further name of a file that is not carried")
            return
        self._put(entry, place, content)

    def _put(self, entry: tarfile.TarInfo, place: str, content: IO[bytes] | None = None) -> None:
        self._places.add(place)
        self._tar.addfile(entry, content)

    def _leads_inside(self, link: tarfile.TarInfo) -> bool:
        parts = PurePosixPath(link.linkname).parts
        n_up = next((n for n, part in enumerate(parts) if part != ".."), len(parts))
        if ".." in parts[n_up:]:
            # What that means depends on where other links lead.
            return False
        target = posixpath.normpath(posixpath.join("/", posixpath.dirname(link.name), link.linkname))
        is_carried = any(PurePosixPath(target).is_relative_to(source) for source in self._sources)
        return is_carried and not _is_uncarried(target)


def _is_uncarried(place: str) -> bool:
    return any(PurePosixPath(place).is_relative_to(path) for path in UNCARRIED_PATHS)
