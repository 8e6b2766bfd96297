"""Trees out of a box, in pieces: spooled to this host's disk, then read file by file, each one masked.

Memory holds one piece at a time, whatever a box gives: archives and large files are on disk until they are
in the blob store.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from activities.masks import MaskedOutput, SecretMask

PIECE_BYTES = 1024 * 1024
"""Files up to this size are held whole; larger ones are on disk."""


@dataclass(frozen=True)
class KeptContent:
    """A file's bytes as they are kept: in `data`, or on disk at `path`."""

    size_bytes: int
    sha256: str
    data: bytes = b""
    path: Path | None = None


@dataclass(frozen=True)
class TreeMember:
    """One entry of a tree that is no folder. `content` is None where it is no regular file, or left out.

    `name` is relative to the tree, empty when the tree is a file. `kind` says what it is.
    """

    name: str
    mode: int
    kind: str
    content: KeptContent | None = None


async def spool(pieces: AsyncIterator[bytes], target: Path, max_bytes: int) -> bool:
    """Write the pieces to `target`, no more than `max_bytes`; whether there was more."""
    n_written = 0
    try:
        with target.open("wb") as file:
            async for piece in pieces:
                file.write(piece[: max_bytes - n_written])
                n_written += len(piece)
                if n_written > max_bytes:
                    return True
        return False
    finally:
        # Whoever gives the pieces is told at once that no more are wanted.
        if isinstance(pieces, AsyncGenerator):
            await pieces.aclose()


def tree_members(
    archive: Path, scratch: Path, mask: SecretMask, wanted: Callable[[str], bool], *, is_cut: bool
) -> Iterator[TreeMember]:
    """The entries of a spooled tar whose names are `wanted`, their contents masked. Blocks: for a thread.

    A large content is at the path `scratch`, and is gone when the next entry is asked for. Of an archive
    that was cut, the entry that stands at its end is left out. A further name of a file is a file.
    """
    files: dict[str, tarfile.TarInfo] = {}
    is_tree: bool | None = None
    with tarfile.open(archive) as tar:
        try:
            for member in tar:
                # A folder's tar begins with itself; a file's has the file alone, by its last name.
                is_tree = member.isdir() if is_tree is None else is_tree
                name = _name(member) if is_tree else ""
                if member.isreg():
                    files[member.name] = member
                if not member.isdir() and wanted(name):
                    yield _member(tar, member, files, (scratch, mask), name)
                    scratch.unlink(missing_ok=True)
        except tarfile.ReadError:
            if not is_cut:
                raise


def content_of(
    file: IO[bytes], scratch: Path, mask: SecretMask, *, is_text: bool | None = None
) -> KeptContent:
    """A file's bytes, masked: as text, or in place where it is binary (None: told by its bytes). Blocks."""
    first = file.read(PIECE_BYTES + 1)
    is_text = b"\0" not in first if is_text is None else is_text
    if len(first) <= PIECE_BYTES:
        data = mask.text(first) if is_text else mask.in_place(first)
        return KeptContent(len(data), hashlib.sha256(data).hexdigest(), data)
    digest, size = hashlib.sha256(), 0
    with scratch.open("wb") as target:
        for data in _masked(first, file, mask, is_text=is_text):
            digest.update(data)
            size += len(data)
            target.write(data)
    return KeptContent(size, digest.hexdigest(), path=scratch)


def _masked(first: bytes, file: IO[bytes], mask: SecretMask, *, is_text: bool) -> Iterator[bytes]:
    output, at, piece = MaskedOutput(mask, is_in_place=not is_text), 0, first
    while piece:
        ready = output.take(at, piece)
        at += len(piece)
        if ready is not None:
            yield ready.data
        piece = file.read(PIECE_BYTES)
    rest = output.end()
    if rest is not None:
        yield rest.data


def _member(
    tar: tarfile.TarFile,
    member: tarfile.TarInfo,
    files: Mapping[str, tarfile.TarInfo],
    into: tuple[Path, SecretMask],
    name: str,
) -> TreeMember:
    mode = member.mode & 0o7777
    if ".." in name.split("/"):
        return TreeMember(name, mode, "a name that leads out of the tree")
    # A link is looked up among the files before it, never followed: links may form circles.
    regular = files.get(member.linkname) if member.islnk() else member
    file = tar.extractfile(regular) if regular is not None and regular.isreg() else None
    if file is None:
        return TreeMember(name, mode, _kind(member))
    return TreeMember(name, mode, "file", content_of(file, *into))


def _kind(member: tarfile.TarInfo) -> str:
    if member.issym():
        return f"a symbolic link to {_text(member.linkname)}"
    return "a hard link" if member.islnk() else "no regular file"


def _name(member: tarfile.TarInfo) -> str:
    return _text("/".join(part for part in member.name.split("/") if part not in ("", ".")))


def _text(name: str) -> str:
    """A file name as text: bytes that are no UTF-8, and NUL, are written as `\\xNN`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").replace("\0", "\\x00")
