"""Bytes on their way out: whole archives with length and digest (contract §1.18), and ranges (§1.17)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from domain.errors import ApiError
from store.blobs import Blobs

# An unranged read of a larger file is refused; ranges always work.
MAX_UNRANGED_BYTES = 64 * 1024 * 1024
RANGE_CHUNK_BYTES = 1024 * 1024

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Package:
    """A stored archive and the file name a browser would give it."""

    key: str
    sha256: str
    size_bytes: int
    filename: str


async def package_answer(blobs: Blobs, package: Package) -> Response:
    """The archive; the digest's header name is lower-case on the wire, as the client looks for it.

    Raises `package_missing` and `package_corrupt`: what is stored is read before it is promised.
    """
    await _verify(blobs, package)
    headers = {
        "Content-Length": str(package.size_bytes),
        "x-package-sha256": package.sha256,
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(package.filename, safe='')}",
    }
    return StreamingResponse(blobs.stream(package.key), media_type="application/gzip", headers=headers)


async def file_answer(request: Request, blobs: Blobs, key: str, size_bytes: int) -> Response:
    """The file, or the range that was asked for as 206."""
    asked = request.headers.get("range")
    span = None if asked is None else parse_range(asked, size_bytes)
    if span is None:
        if size_bytes > MAX_UNRANGED_BYTES:
            message = f"{size_bytes} bytes are above {MAX_UNRANGED_BYTES}; ask for a Range."
            raise ApiError("invalid_input", message, param="Range", status=413)
        span, status, headers = (0, size_bytes), 200, {}
    else:
        status, headers = 206, {"Content-Range": f"bytes {span[0]}-{span[1] - 1}/{size_bytes}"}
    headers = {**headers, "Content-Length": str(span[1] - span[0]), "Accept-Ranges": "bytes"}
    body = _pieces(blobs, key, *span)
    return StreamingResponse(body, status, media_type="application/octet-stream", headers=headers)


async def _verify(blobs: Blobs, package: Package) -> None:
    digest = hashlib.sha256()
    try:
        async for chunk in blobs.stream(package.key):
            digest.update(chunk)
    except FileNotFoundError:
        raise ApiError("package_missing", f"{package.filename}: the stored archive is gone.") from None
    if digest.hexdigest() != package.sha256:
        raise ApiError("package_corrupt", f"{package.filename}: the stored archive is damaged.")


def parse_range(text: str, size_bytes: int) -> tuple[int, int] | None:
    """`bytes=a-b`, `bytes=a-` or `bytes=-n` as [start, end); None for a header that is no single range.

    Raises `invalid_input` with 416 for one that lies outside the file.
    """
    match = _RANGE.fullmatch(text.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if match[1]:
        start = int(match[1])
        end = min(int(match[2]) + 1, size_bytes) if match[2] else size_bytes
    else:
        start, end = max(size_bytes - int(match[2]), 0), size_bytes
    if start >= end:
        raise ApiError("invalid_input", f"Range: outside of {size_bytes} bytes.", param="Range", status=416)
    return start, end


async def _pieces(blobs: Blobs, key: str, start: int, end: int) -> AsyncIterator[bytes]:
    while start < end:
        stop = min(start + RANGE_CHUNK_BYTES, end)
        yield await blobs.get_range(key, start, stop)
        start = stop
