"""Resumable publish: open, probe, send chunks, complete (contract §1.15)."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from api.answers import json_answer
from api.archives_in import publication_of, spooled, store_archive
from api.limits import MAX_CHUNK_BYTES, MAX_CONCURRENT_CHUNKS, MAX_DATASET_ARCHIVE_BYTES, Gate
from api.platform import CallerDep, Platform, PlatformDep
from api.queries import json_body, read_body
from domain.errors import ApiError
from domain.requests import RequestModel, parse_request
from store import uploads
from store.accounts import Caller
from store.dataset_reads import read_import
from store.publish import (
    Publication,
    StoredArchive,
    attach_archive,
    check_label,
    check_name,
    is_published,
    register_import,
)
from store.uploads import DATASET_UPLOAD, UploadOpening, chunk_key

router = APIRouter()
_chunks = Gate("too_many_concurrent_upload_chunks", MAX_CONCURRENT_CHUNKS)
_PATH = "/api/datasets/publish/uploads"


class OpenUpload(RequestModel):
    """The body that opens a session."""

    size: Annotated[int, Field(ge=1)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    name: str | None = None
    version: str | None = None
    org: str | None = None

    @property
    def opening(self) -> UploadOpening:
        """As the ledger keeps it."""
        fields = {"name": self.name, "version": self.version, "org": self.org}
        present = {name: value for name, value in fields.items() if value is not None}
        return UploadOpening(self.size, self.sha256, present)


@router.post(_PATH)
async def open_upload(request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """A session; with an explicit new name and version its import is registered at once."""
    body = parse_request(OpenUpload, await json_body(request))
    if body.size > MAX_DATASET_ARCHIVE_BYTES:
        message = f"size: {body.size} is above {MAX_DATASET_ARCHIVE_BYTES} bytes."
        raise ApiError("import_too_large", message, param="size")
    for param, value in (("name", body.name), ("version", body.version)):
        if value is not None:
            check_label(param, value)
    await check_name(platform.db, caller, body.name, body.org)
    import_id: str | None = None
    async with platform.db.transaction() as connection:
        if body.name and body.version and not await is_published(connection, body.name, body.version):
            publication = Publication(body.name, body.version, body.org)
            import_id = await register_import(connection, caller, publication)
        session_id = await uploads.open_session(connection, caller, DATASET_UPLOAD, body.opening, import_id)
    return json_answer({"id": session_id, "import_id": import_id}, 201)


@router.head(_PATH + "/{session_id:segment}")
async def probe(session_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """How far it came."""
    session = await uploads.find_session(platform.db, caller, DATASET_UPLOAD, session_id)
    return _offset_answer(session["offset_bytes"])


@router.patch(_PATH + "/{session_id:segment}")
async def send_chunk(session_id: str, request: Request, platform: PlatformDep, caller: CallerDep) -> Response:
    """Store the next bytes; refused before they are read where that can be told."""
    with _chunks.enter():
        session = await uploads.find_session(platform.db, caller, DATASET_UPLOAD, session_id)
        offset = _whole_number(request, "Upload-Offset")
        length = _whole_number(request, "Content-Length")
        uploads.check_writable(session, offset, length)
        expected = _checksum(request)
        chunk = await read_body(request, MAX_CHUNK_BYTES)
        if hashlib.sha256(chunk).digest() != expected:
            raise ApiError("upload_chunk_digest_mismatch", "The chunk does not have its checksum.")
        await platform.blobs.put(chunk_key(session_id, offset), chunk)
        return _offset_answer(await uploads.advance(platform.db, session_id, offset, len(chunk)))


@router.post(_PATH + "/{session_id:segment}/complete")
async def complete(session_id: str, platform: PlatformDep, caller: CallerDep) -> Response:
    """The archive is whole: publish it. A repeat answers the same import."""
    session = await uploads.find_session(platform.db, caller, DATASET_UPLOAD, session_id)
    if session["state"] == "open":
        await _assemble(platform, caller, session)
        session = await uploads.find_session(platform.db, caller, DATASET_UPLOAD, session_id)
    if session["state"] != "complete":
        raise ApiError("upload_session_failed", "The upload session failed.")
    platform.outbox.wake()
    return json_answer(await read_import(platform.db, caller, session["import_id"]), 202)


async def _assemble(platform: Platform, caller: Caller, session: Any) -> None:
    if session["offset_bytes"] < session["size_bytes"]:
        message = f"{session['offset_bytes']} of {session['size_bytes']} bytes have arrived."
        raise ApiError("upload_incomplete", message, details={"offset": session["offset_bytes"]})
    keys = await platform.blobs.list(f"uploads/{session['id']}/")
    async with spooled(_joined(platform, keys), MAX_DATASET_ARCHIVE_BYTES) as spool:
        if spool.sha256 != session["sha256"]:
            await uploads.fail_session(platform.db, session, "the archive does not have its digest")
            raise ApiError("upload_archive_digest_mismatch", "The archive does not have its digest.")
        publication = await publication_of(session["fields"], spool)
        archive = await store_archive(platform.blobs, spool)
    if not await _finish(platform, caller, session, publication, archive):
        await platform.blobs.delete(archive.key)
    await asyncio.gather(*(platform.blobs.delete(key) for key in keys))


async def _finish(
    platform: Platform, caller: Caller, session: Any, publication: Publication, archive: StoredArchive
) -> bool:
    """False when another request completed the session meanwhile."""
    async with platform.db.transaction() as connection:
        state, import_id = await uploads.lock_session(connection, session["id"])
        if state != "open":
            return False
        if import_id is None:
            import_id = await register_import(connection, caller, publication)
        await attach_archive(connection, import_id, archive)
        await uploads.finish_session(connection, session["id"], "complete", import_id)
        return True


async def _joined(platform: Platform, keys: list[str]) -> AsyncIterator[bytes]:
    for key in keys:
        yield await platform.blobs.get(key)


def _offset_answer(offset: int) -> Response:
    return Response(status_code=204, headers={"Upload-Offset": str(offset)})


def _whole_number(request: Request, header: str) -> int:
    text = request.headers.get(header, "")
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ApiError("invalid_input", f"{header}: a whole number is needed.", param=header)
    return int(text)


def _checksum(request: Request) -> bytes:
    algorithm, _, encoded = request.headers.get("upload-checksum", "").partition(" ")
    try:
        digest = b64decode(encoded, validate=True)
    except ValueError:
        digest = b""
    if algorithm != "sha256" or len(digest) != 32:
        message = "Upload-Checksum: `sha256 <base64 of the digest>` is needed."
        raise ApiError("invalid_input", message, param="Upload-Checksum")
    return digest
