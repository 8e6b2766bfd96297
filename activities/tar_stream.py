"""A tar or tar.gz as a stream of entries, read with suspicion.

The headers are walked here, because `tarfile` reads extension headers of any size into memory and takes
a damaged header for the end of the archive.
"""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast

from domain.errors import ArchiveError

__all__ = ["ArchiveLimits", "CountedStream", "open_stream", "padded", "tar_entries"]

MAX_UNPACKED_BYTES = 64 * 1024**3
MAX_FILE_BYTES = 5 * 1024**3
"""Contract section 5: the per-file ceiling of uploads."""
MAX_ENTRIES = 1_000_000
MAX_RATIO = 200
"""Unpacked bytes per packed byte; deflate reaches 1032 on zeros, text stays below 50."""
RATIO_FREE_BYTES = 64 * 1024**2
"""Below this size no ratio is asked for: a small archive of zeros harms nobody."""
MAX_EXTENSION_BYTES = 64 * 1024
"""A PAX or GNU long-name header."""

_BLOCK = tarfile.BLOCKSIZE
_CHUNK = 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
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


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass
class CountedStream:
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


def open_stream(packed: BinaryIO, packed_size: int, limits: ArchiveLimits) -> CountedStream:
    magic = packed.read(2)
    packed.seek(0)
    if magic != _GZIP_MAGIC:
        return CountedStream(packed, limits, None)
    return CountedStream(cast("_Readable", gzip.GzipFile(fileobj=packed, mode="rb")), limits, packed_size)


@dataclass
class _Extension:
    """What PAX and GNU extension headers say about the next entry."""

    name: str | None = None
    link_name: str | None = None
    size: int | None = None


def tar_entries(stream: CountedStream) -> Iterator[tarfile.TarInfo]:
    """Each entry's header, extension headers applied, in order.

    Whoever takes an entry with data reads `padded(entry.size)` bytes off the stream before the next one.
    Raises `ArchiveError` for damage, truncation, and bytes after the end.
    """
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
        yield entry


def _require_padding_only(stream: CountedStream) -> None:
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


def _extension_data(stream: CountedStream, entry: tarfile.TarInfo) -> bytes:
    if not 0 <= entry.size <= MAX_EXTENSION_BYTES:
        raise ArchiveError(f"an extension header is larger than {MAX_EXTENSION_BYTES} bytes")
    data = stream.read(padded(entry.size))
    if len(data) < padded(entry.size):
        raise ArchiveError("the archive is cut off inside an extension header")
    return data[: entry.size]


def padded(size: int) -> int:
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
