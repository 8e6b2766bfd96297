"""Packing our trees, and unpacking archives that strangers made.

`unpack_archive` reads a tar or tar.gz from disk as a stream (`activities.tar_stream`) and writes regular
files and directories only, into a directory that appears whole or not at all.

All functions block; call them in a thread.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from activities.tar_stream import ArchiveLimits, CountedStream, open_stream, padded, tar_entries
from domain.errors import ArchiveError

__all__ = [
    "ArchiveLimits",
    "PackedArchive",
    "UnpackedArchive",
    "pack_tree",
    "tar_of_tree",
    "tar_of_trees",
    "tree_files",
    "unpack_archive",
]

MAX_PATH_BYTES = 4096 - 512
"""Leaves room for the directory it is unpacked into."""
MAX_NAME_BYTES = 255
MAX_DEPTH = 128

_CHUNK = 1024 * 1024
_COMPRESSION_LEVEL = 6


@dataclass(frozen=True)
class UnpackedArchive:
    """What was written. `top_dir` is the one directory that wrapped everything and was left out."""

    paths: tuple[str, ...]
    total_bytes: int
    dropped_links: tuple[str, ...]
    top_dir: str | None


@dataclass(frozen=True)
class PackedArchive:
    """A packed tree: lowercase hex SHA-256 and length of the archive file."""

    sha256: str
    length: int


def unpack_archive(
    archive: Path, destination: Path, *, limits: ArchiveLimits | None = None, may_be_wrapped: bool = False
) -> UnpackedArchive:
    """Unpack into `destination`, which must not exist; its parent must.

    Symlinks inside the tree are dropped and listed. Raises `ArchiveError` naming the entry for anything
    unsafe, damaged or beyond `limits`, `FileExistsError` when `destination` exists; nothing is left
    behind then. With `may_be_wrapped`, a single top directory that holds everything is left out.
    """
    if os.path.lexists(destination):
        raise FileExistsError(destination)
    staging = Path(
        tempfile.mkdtemp(prefix=f".{destination.name}.", suffix=".partial", dir=destination.parent)
    )
    try:
        tree = staging / "tree"
        _make_directory(tree)
        writer = _TreeWriter(tree, limits or ArchiveLimits())
        with archive.open("rb") as packed:
            stream = open_stream(packed, archive.stat().st_size, writer.limits)
            for entry in tar_entries(stream):
                writer.add(entry, stream)
        top_dir = writer.sole_top_directory() if may_be_wrapped else None
        os.rename(tree / top_dir if top_dir else tree, destination)
        return writer.result(top_dir)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@dataclass
class _TreeWriter:
    """Writes entries below `root`, which nobody else writes to, and remembers every name."""

    root: Path
    limits: ArchiveLimits
    files: dict[str, int] = field(default_factory=dict[str, int])
    directories: set[str] = field(default_factory=set[str])
    links: set[str] = field(default_factory=set[str])
    n_entries: int = 0
    _spelling: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, entry: tarfile.TarInfo, stream: CountedStream) -> None:
        self.n_entries += 1
        if self.n_entries > self.limits.max_entries:
            raise ArchiveError(f"the archive holds more than {self.limits.max_entries} entries")
        path = _safe_path(entry.name)
        if entry.isdir():
            self._add_directory(path)
        elif entry.issym():
            self._drop_link(path, entry.linkname)
        elif entry.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE):
            self._add_file(path, entry, stream)
        else:
            raise ArchiveError(f"{entry.name!r} is {_kind(entry)}, which is not accepted")

    def sole_top_directory(self) -> str | None:
        """The one directory at the top, when there is no file and no link beside it."""
        tops = {path.split("/")[0] for path in [*self.files, *self.links, *self.directories]}
        return tops.pop() if len(tops) == 1 and tops <= self.directories else None

    def result(self, top_dir: str | None) -> UnpackedArchive:
        prefix = f"{top_dir}/" if top_dir else ""
        return UnpackedArchive(
            paths=tuple(sorted(path.removeprefix(prefix) for path in self.files)),
            total_bytes=sum(self.files.values()),
            dropped_links=tuple(sorted(path.removeprefix(prefix) for path in self.links)),
            top_dir=top_dir,
        )

    def _add_directory(self, path: str) -> None:
        if not path or path in self.directories:
            return
        self._add_parents(path)
        self._claim(path)
        self.directories.add(path)
        _make_directory(self.root / path)

    def _add_parents(self, path: str) -> None:
        parent, slash, _ = path.rpartition("/")
        if slash:
            self._add_directory(parent)

    def _add_file(self, path: str, entry: tarfile.TarInfo, stream: CountedStream) -> None:
        if not path:
            raise ArchiveError(f"{entry.name!r} names no file")
        if not 0 <= entry.size <= self.limits.max_file_bytes:
            raise ArchiveError(f"{path!r} is larger than {self.limits.max_file_bytes} bytes")
        self._add_parents(path)
        self._claim(path)
        self.files[path] = entry.size
        mode = 0o755 if entry.mode & 0o111 else 0o644
        descriptor = os.open(self.root / path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
        with open(descriptor, "wb") as target:
            os.fchmod(descriptor, mode)
            _copy_data(stream, target, path, entry.size)

    def _drop_link(self, path: str, target: str) -> None:
        """A link is never made. One that points out of the tree betrays an attack and refuses all."""
        resolved = os.path.normpath(os.path.join(os.path.dirname(path), target))
        if not path or target.startswith("/") or resolved == ".." or resolved.startswith("../"):
            raise ArchiveError(f"{path!r} is a symbolic link out of the archive, to {target!r}")
        self._add_parents(path)
        self._claim(path)
        self.links.add(path)

    def _claim(self, path: str) -> None:
        """Refuse a name taken before, also in another case or Unicode form."""
        key = unicodedata.normalize("NFC", path).casefold()
        earlier = self._spelling.setdefault(key, path)
        if earlier != path:
            raise ArchiveError(f"{path!r} and {earlier!r} differ in case or Unicode form only")
        if path in self.files or path in self.directories or path in self.links:
            raise ArchiveError(f"{path!r} is in the archive twice, or is two of file, directory and link")


def _make_directory(path: Path) -> None:
    """0755 whatever the umask."""
    path.mkdir()
    path.chmod(0o755)


def _copy_data(stream: CountedStream, target: BinaryIO, path: str, size: int) -> None:
    left = size
    while left:
        chunk = stream.read(min(left, _CHUNK))
        if not chunk:
            raise ArchiveError(f"the archive is cut off inside {path!r}")
        target.write(chunk)
        left -= len(chunk)
    if len(stream.read(padded(size) - size)) != padded(size) - size:
        raise ArchiveError(f"the archive is cut off after {path!r}")


def _safe_path(name: str) -> str:
    """The entry's path relative to the root, "" for the root itself; raises `ArchiveError`."""
    if name.startswith("/"):
        raise ArchiveError(f"{name!r} is an absolute path")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ArchiveError(f"{name!r} climbs out with '..'")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):
        raise ArchiveError(f"{name!r} holds control characters")
    path = "/".join(parts)
    if len(path.encode()) > MAX_PATH_BYTES or len(parts) > MAX_DEPTH:
        raise ArchiveError(f"{name[:80]!r}… is too long or too deep")
    if any(len(part.encode()) > MAX_NAME_BYTES for part in parts):
        raise ArchiveError(f"{name[:80]!r}… has a part longer than {MAX_NAME_BYTES} bytes")
    return path


def _kind(entry: tarfile.TarInfo) -> str:
    if entry.islnk():
        return "a hard link"
    if entry.isfifo():
        return "a fifo"
    if entry.ischr() or entry.isblk():
        return "a device"
    return f"an entry of the unknown kind {entry.type!r}"


def tree_files(directory: Path, prefix: str = "") -> dict[str, Path]:
    """Regular files below `directory` by archive name, sorted; symlinks are left out."""
    found: dict[str, Path] = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                found[prefix + path.relative_to(directory).as_posix()] = path
    return dict(sorted(found.items()))


def tar_of_tree(directory: Path) -> bytes:
    """The tree as an uncompressed tar in memory, for a box's `put_tar`; deterministic like `pack_tree`."""
    return tar_of_trees([directory])


def tar_of_trees(directories: Sequence[Path]) -> bytes:
    """Several trees as one; of files with the same name the last tree's is taken."""
    files = {path: content for directory in directories for path, content in tree_files(directory).items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in sorted(files.items()):
            _pack_entry(tar, path, content)
    return buffer.getvalue()


def pack_tree(source: Path | Mapping[str, Path | bytes], archive: Path) -> PackedArchive:
    """Write a deterministic tar.gz: the same names, bytes and execute bits give the same archive.

    `source` is a directory, or archive name → file or content. The archive appears whole or not at all,
    and replaces an earlier one.
    """
    entries = tree_files(source) if isinstance(source, Path) else source
    descriptor, name = tempfile.mkstemp(prefix=f".{archive.name}.", suffix=".partial", dir=archive.parent)
    try:
        with open(descriptor, "wb") as target:
            hashing = _HashingWriter(target)
            with (
                gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, cast("BinaryIO", hashing), mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as tar,
            ):
                for path in sorted(entries):
                    _pack_entry(tar, path, entries[path])
        os.chmod(name, 0o644)
        os.replace(name, archive)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return PackedArchive(hashing.sha256.hexdigest(), hashing.length)


class _HashingWriter:
    """Passes bytes on to a file, and knows their digest and length."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self.sha256 = hashlib.sha256()
        self.length = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.length += len(data)
        return self._target.write(data)

    def flush(self) -> None:
        self._target.flush()


def _pack_entry(tar: tarfile.TarFile, path: str, content: Path | bytes) -> None:
    """Owner, time and all but one bit of the mode are constants."""
    entry = tarfile.TarInfo(path)
    entry.mode = 0o644
    if isinstance(content, bytes):
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
        return
    with content.open("rb") as data:
        status = os.fstat(data.fileno())
        entry.size = status.st_size
        entry.mode = 0o755 if status.st_mode & 0o111 else 0o644
        tar.addfile(entry, data)
