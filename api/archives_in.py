"""Archives on their way in: spooled to a file with their digest, then stored as a blob."""

from __future__ import annotations

import asyncio
import hashlib
import tarfile
import tempfile
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from domain.errors import ApiError, TaskError
from domain.manifests import Manifest, read_manifest
from store.blobs import Blobs
from store.publish import Publication, StoredArchive

SPOOL_CHUNK_BYTES = 1024 * 1024
MAX_MANIFEST_BYTES = 4 * 1024 * 1024
# Looking for dataset.toml unpacks the stream; past this much, name and version must be given.
MAX_SCANNED_BYTES = 4 * 1024**3
# The copy under tasks/ wins over the root's (contract §6.7).
_MANIFEST_PATHS = ("tasks/dataset.toml", "dataset.toml")


@dataclass(frozen=True)
class Spooled:
    """A whole archive in a temporary file."""

    path: Path
    sha256: str
    size_bytes: int


@asynccontextmanager
async def spooled(
    chunks: AsyncIterator[bytes], max_bytes: int, code: str = "import_too_large"
) -> AsyncGenerator[Spooled]:
    """The bytes in a file that goes with the block; raises `code` as soon as they are too many."""
    with tempfile.TemporaryDirectory(prefix="evolve-upload-") as scratch:
        path = Path(scratch) / "archive.tar.gz"
        digest, size = hashlib.sha256(), 0
        with path.open("wb") as file:
            async for block in _blocks(chunks):
                size += len(block)
                if size > max_bytes:
                    raise ApiError(code, f"The archive is larger than {max_bytes} bytes.")
                digest.update(block)
                await asyncio.to_thread(file.write, block)
        yield Spooled(path, digest.hexdigest(), size)


async def store_archive(blobs: Blobs, spool: Spooled) -> StoredArchive:
    """The archive as a blob of its own."""
    key = f"packages/{uuid4().hex}.tar.gz"
    await blobs.put_file(key, spool.path)
    return StoredArchive(key, spool.sha256, spool.size_bytes)


async def publication_of(fields: Mapping[str, str], spool: Spooled) -> Publication:
    """Name and version as given, else as the corpus's own dataset.toml says; raises `invalid_input`."""
    name, version = fields.get("name"), fields.get("version")
    if name is None or version is None:
        manifest = await _manifest_of(spool)
        name, version = name or manifest.short_name, version or manifest.dataset.version
    if version is None:
        message = "version: give one; the corpus's dataset.toml has none."
        raise ApiError("invalid_input", message, param="version")
    return Publication(name, version, fields.get("org"))


async def _manifest_of(spool: Spooled) -> Manifest:
    text = await asyncio.to_thread(_find_manifest, spool.path)
    if text is None:
        message = "name: give name and version, or pack a dataset.toml at the root or under tasks/."
        raise ApiError("invalid_input", message, param="name")
    try:
        return read_manifest(text)
    except TaskError as error:
        raise ApiError("invalid_input", error.message, param="archive") from None


async def _blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces worth a thread's while."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        if len(buffer) >= SPOOL_CHUNK_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


def _find_manifest(path: Path) -> bytes | None:
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                if archive.offset > MAX_SCANNED_BYTES:
                    break
                name = member.name.removeprefix("./")
                if name in _MANIFEST_PATHS and member.isfile() and member.size <= MAX_MANIFEST_BYTES:
                    file = archive.extractfile(member)
                    found[name] = file.read() if file is not None else b""
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise ApiError("invalid_archive", f"The archive cannot be read: {error}.") from None
    return next((found[name] for name in _MANIFEST_PATHS if name in found), None)
