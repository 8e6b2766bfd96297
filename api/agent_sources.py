"""What a registered agent is built from, on its way in: a script, or a directory as an archive."""

from __future__ import annotations

import asyncio
import tarfile
import zlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from uuid import uuid4

from api.archives_in import spooled
from api.multipart import ARCHIVE_PART, Form
from domain.agents import (
    INSTALL_SCRIPT,
    MAX_ARCHIVE_BYTES,
    MAX_ARCHIVE_ENTRIES,
    MAX_SCRIPT_BYTES,
    MAX_UNPACKED_BYTES,
    AgentSource,
)
from domain.errors import ApiError
from store.agents import StoredSource
from store.blobs import Blobs

SCRIPT_PART = "install_script"


def check_source(form: Form) -> None:
    """Exactly one of script and archive; raises `agent_source_required` or `agent_source_conflict`."""
    has_script, has_archive = SCRIPT_PART in form.fields, form.archive is not None
    if has_script and has_archive:
        raise ApiError("agent_source_conflict", f"Send {SCRIPT_PART} or {ARCHIVE_PART}, not both.")
    if not has_script and not has_archive:
        raise ApiError("agent_source_required", f"Send {SCRIPT_PART}, or a directory as {ARCHIVE_PART}.")


@asynccontextmanager
async def stored_source(blobs: Blobs, form: Form) -> AsyncGenerator[StoredSource]:
    """The source as a blob, which is removed again when the block fails.

    Raises `agent_too_large` and `invalid_archive`.
    """
    source = await (
        _store_script(blobs, form.fields[SCRIPT_PART])
        if form.archive is None
        else _store_archive(blobs, form)
    )
    try:
        yield source
    except BaseException:
        await blobs.delete(source.blob_key)
        raise


async def _store_script(blobs: Blobs, script: str) -> StoredSource:
    data = script.encode()
    if not script.strip():
        raise ApiError("agent_source_required", f"{SCRIPT_PART}: it is empty.", param=SCRIPT_PART)
    if len(data) > MAX_SCRIPT_BYTES:
        message = f"{SCRIPT_PART}: larger than {MAX_SCRIPT_BYTES} bytes."
        raise ApiError("agent_too_large", message, param=SCRIPT_PART)
    key = _new_key("install_script")
    return StoredSource("install_script", key, await blobs.put(key, data), len(data))


async def _store_archive(blobs: Blobs, form: Form) -> StoredSource:
    assert form.archive is not None
    async with spooled(form.archive, MAX_ARCHIVE_BYTES, "agent_too_large") as spool:
        await asyncio.to_thread(check_archive, spool.path)
        key = _new_key("tarball")
        await blobs.put_file(key, spool.path)
        return StoredSource("tarball", key, spool.sha256, spool.size_bytes)


def _new_key(kind: AgentSource) -> str:
    return f"agent-sources/{uuid4().hex}.{'sh' if kind == 'install_script' else 'tar.gz'}"


def check_archive(path: Path) -> None:
    """Files and folders only, below the root, with something to build from.

    Raises `invalid_archive` that names the entry, and `agent_too_large` for one that unpacks to too much.
    """
    n_entries, n_bytes, has_source = 0, 0, False
    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                n_entries, n_bytes = n_entries + 1, n_bytes + member.size
                if n_entries > MAX_ARCHIVE_ENTRIES or n_bytes > MAX_UNPACKED_BYTES:
                    message = (
                        f"More than {MAX_ARCHIVE_ENTRIES} entries or {MAX_UNPACKED_BYTES} bytes unpacked."
                    )
                    raise ApiError("agent_too_large", message, param=ARCHIVE_PART)
                has_source |= _check_member(member)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise _invalid(f"it cannot be read: {error}") from None
    if not has_source:
        raise _invalid(f"it has neither {INSTALL_SCRIPT} at its root nor a file in bin/")


def _check_member(member: tarfile.TarInfo) -> bool:
    """Whether it is what an agent is built from."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise _invalid(f"{member.name[:200]!r} is outside of the archive's root")
    if not member.isfile() and not member.isdir():
        raise _invalid(f"{member.name[:200]!r} is neither a file nor a folder")
    is_script = name.parts == (INSTALL_SCRIPT,)
    return member.isfile() and (is_script or (len(name.parts) > 1 and name.parts[0] == "bin"))


def _invalid(what: str) -> ApiError:
    return ApiError("invalid_archive", f"{ARCHIVE_PART}: {what}.", param=ARCHIVE_PART)
