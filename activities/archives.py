"""Packing our trees, and unpacking archives that strangers made.

`unpack_archive` reads a tar or tar.gz from disk as a stream and writes regular files and directories
only, into a directory that appears whole or not at all. The tar is walked header by header here, because
`tarfile` reads extension headers of any size into memory and takes a damaged header for the end.

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
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from domain.errors import ArchiveError

__all__ = [
    "ArchiveLimits",
    "PackedArchive",
    "UnpackedArchive",
    "pack_tree",
    "tree_files",
    "unpack_archive",
]

MAX_UNPACKED_BYTES = 64 * 1024**3
MAX_FILE_BYTES = 5 * 1024**3
"""Contract section 5: the per-file ceiling of uploads."""
MAX_ENTRIES = 1_000_000
MAX_RATIO = 200
"""Unpacked bytes per packed byte; deflate reaches 1032 on zeros, text stays below 50."""
RATIO_FREE_BYTES = 64 * 1024**2
"""Below this size no ratio is asked for: a small archive of zeros harms nobody."""
MAX_PATH_BYTES = 4096 - 512
"""Leaves room for the directory it is unpacked into."""
MAX_NAME_BYTES = 255
MAX_DEPTH = 128
MAX_EXTENSION_BYTES = 64 * 1024
"""A PAX or GNU long-name header."""

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_COMPRESSION_LEVEL = 6
_GNU_SPARSE = "GNU.sparse."
_EXTENSION_TYPES = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


@dataclass(frozen=True)
class ArchiveLimits:
    """Ceilings; the defaults are the module's constants."""

    max_unpacked_bytes: int = MAX_UNPACKED_BYTES
    max_file_bytes: int = MAX_FILE_BYTES
    max_entries: int = MAX_ENTRIES
    max_ratio: int = MAX_RATIO
    ratio_free_bytes: int = RATIO_FREE_BYTES


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
            _read_tar(_open_stream(packed, archive.stat().st_size, writer.limits), writer)
        top_dir = writer.sole_top_directory() if may_be_wrapped else None
        os.rename(tree / top_dir if top_dir else tree, destination)
        return writer.result(top_dir)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass
class _Stream:
    """The unpacked bytes of the archive, counted against the ceilings as they are read."""

    source: _Readable
    limits: ArchiveLimits
    packed_size: int | None
    """None for a plain tar, to which no ratio applies."""
    total: int = 0

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, fewer only at the end of the archive."""
        parts: list[bytes] = []
        while size > 0:
            try:
                part = self.source.read(min(size, _CHUNK))
            except (OSError, EOFError, zlib.error) as error:
                raise ArchiveError(f"the archive is damaged or cut off: {error}") from None
            if not part:
                break
            parts.append(part)
            size -= len(part)
            self._count(len(part))
        return b"".join(parts)

    def _count(self, length: int) -> None:
        self.total += length
        if self.total > self.limits.max_unpacked_bytes:
            raise ArchiveError(f"the archive unpacks to more than {self.limits.max_unpacked_bytes} bytes")
        if self.packed_size is None or self.total <= self.limits.ratio_free_bytes:
            return
        if self.total > self.packed_size * self.limits.max_ratio:
            raise ArchiveError(f"the archive unpacks to more than {self.limits.max_ratio} times its size")


def _open_stream(packed: BinaryIO, packed_size: int, limits: ArchiveLimits) -> _Stream:
    magic = packed.read(2)
    packed.seek(0)
    if magic != _GZIP_MAGIC:
        return _Stream(packed, limits, None)
    return _Stream(cast("_Readable", gzip.GzipFile(fileobj=packed, mode="rb")), limits, packed_size)


@dataclass
class _Extension:
    """What PAX and GNU extension headers say about the next entry."""

    name: str | None = None
    link_name: str | None = None
    size: int | None = None


def _read_tar(stream: _Stream, writer: _TreeWriter) -> None:
    extension = _Extension()
    while True:
        block = stream.read(_BLOCK)
        if len(block) < _BLOCK:
            raise ArchiveError("the archive is cut off, or no tar: it has no end-of-archive block")
        if not any(block):
            _require_padding_only(stream)
            return
        entry = _header(block, stream.total - _BLOCK)
        if entry.type in _EXTENSION_TYPES:
            _extend(extension, entry, _extension_data(stream, entry))
            continue
        _apply(extension, entry)
        extension = _Extension()
        writer.add(entry, stream)


def _require_padding_only(stream: _Stream) -> None:
    while tail := stream.read(_CHUNK):
        if any(tail):
            raise ArchiveError("there are bytes after the end of the archive")


def _header(block: bytes, offset: int) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except UnicodeDecodeError:
        raise ArchiveError(f"the entry at byte {offset} has a name that is not UTF-8") from None
    except tarfile.HeaderError as error:
        raise ArchiveError(f"no tar archive, or damaged at byte {offset}: {error}") from None


def _extension_data(stream: _Stream, entry: tarfile.TarInfo) -> bytes:
    if not 0 <= entry.size <= MAX_EXTENSION_BYTES:
        raise ArchiveError(f"an extension header is larger than {MAX_EXTENSION_BYTES} bytes")
    data = stream.read(_padded(entry.size))
    if len(data) < _padded(entry.size):
        raise ArchiveError("the archive is cut off inside an extension header")
    return data[: entry.size]


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _extend(extension: _Extension, entry: tarfile.TarInfo, data: bytes) -> None:
    if entry.type == tarfile.GNUTYPE_LONGNAME:
        extension.name = _extension_text(data.rstrip(b"\0"))
        return
    if entry.type == tarfile.GNUTYPE_LONGLINK:
        extension.link_name = _extension_text(data.rstrip(b"\0"))
        return
    records = dict(_pax_records(data))
    if any(key.startswith(_GNU_SPARSE) for key in records):
        raise ArchiveError("the archive holds a sparse file, which is not accepted")
    told = {"path", "linkpath", "size"} & records.keys()
    if entry.type == tarfile.XGLTYPE:
        if told:
            raise ArchiveError(f"a global header sets {', '.join(sorted(told))}, which is not accepted")
        return
    if "path" in records:
        extension.name = _extension_text(records["path"])
    if "linkpath" in records:
        extension.link_name = _extension_text(records["linkpath"])
    if "size" in records:
        if not records["size"].isdigit() or len(records["size"]) > 18:
            raise ArchiveError("a PAX header holds a size that is no number")
        extension.size = int(records["size"])


def _pax_records(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The `length key=value` records of a PAX header; values are bytes."""
    while data:
        digits, space, _ = data.partition(b" ")
        length = int(digits) if space and digits.isdigit() and len(digits) < 8 else 0
        key, equals, value = data[len(digits) + 1 : length].partition(b"=")
        if length > len(data) or not equals or not value.endswith(b"\n"):
            raise ArchiveError("a PAX header is damaged")
        yield _extension_text(key), value[:-1]
        data = data[length:]


def _extension_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ArchiveError(f"an entry has a name that is not UTF-8: {data[:80]!r}") from None


def _apply(extension: _Extension, entry: tarfile.TarInfo) -> None:
    if extension.name is not None:
        entry.name = extension.name
        if entry.type == tarfile.AREGTYPE and entry.name.endswith("/"):
            entry.type = tarfile.DIRTYPE
    if extension.link_name is not None:
        entry.linkname = extension.link_name
    if extension.size is not None:
        entry.size = extension.size


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

    def add(self, entry: tarfile.TarInfo, stream: _Stream) -> None:
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

    def _add_file(self, path: str, entry: tarfile.TarInfo, stream: _Stream) -> None:
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


def _copy_data(stream: _Stream, target: BinaryIO, path: str, size: int) -> None:
    left = size
    while left:
        chunk = stream.read(min(left, _CHUNK))
        if not chunk:
            raise ArchiveError(f"the archive is cut off inside {path!r}")
        target.write(chunk)
        left -= len(chunk)
    if len(stream.read(_padded(size) - size)) != _padded(size) - size:
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
