"""Multipart bodies read part by part: metadata first, then at most one archive (contract §1.14).

A form stops at the archive's first byte, so that names, organization and limits are ruled before the
bytes are read.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import Request

from domain.errors import ApiError

ARCHIVE_PART = "archive"
MAX_HEADER_BYTES = 16 * 1024
MAX_FIELD_BYTES = 8 * 1024 * 1024

_BOUNDARY = re.compile(
    r'multipart/form-data\s*;(?:.*;)?\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.I
)
# A client does not escape the filename: everything up to the line's last quote is the name.
_DISPOSITION = re.compile(r'form-data\s*;\s*name="([^"]*)"(?:\s*;\s*filename="(.*)")?\s*', re.I)


@dataclass(frozen=True)
class Form:
    """The metadata parts by name, and the archive's bytes, still to come, or None."""

    fields: dict[str, str]
    archive_name: str | None
    archive: AsyncIterator[bytes] | None


async def read_form(request: Request, known: frozenset[str]) -> Form:
    """The metadata of a body, up to its archive.

    Raises `invalid_multipart` for broken grammar, and `invalid_input` for a part outside `known`.
    """
    match = _BOUNDARY.search(request.headers.get("content-type", ""))
    if match is None:
        raise _invalid("the Content-Type is not multipart/form-data with a boundary")
    reader = _Reader(request.stream(), (match[1] or match[2]).encode())
    fields: dict[str, str] = {}
    await reader.start()
    while not await reader.at_end():
        name, filename = _disposition(await reader.headers())
        if name in fields:
            raise _invalid(f"the part {name} comes twice")
        if name == ARCHIVE_PART and filename is not None:
            return Form(fields, filename, reader.last_part())
        if name not in known:
            raise ApiError("invalid_input", f"{name[:100]}: unknown part.", param=name[:100])
        fields[name] = await reader.field(name)
    return Form(fields, None, None)


def _disposition(headers: bytes) -> tuple[str, str | None]:
    for line in headers.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            match = _DISPOSITION.fullmatch(value.strip().decode("utf-8", "replace"))
            if match is not None:
                return match[1], match[2]
    raise _invalid('a part has no Content-Disposition: form-data; name="…"')


def _invalid(what: str) -> ApiError:
    return ApiError("invalid_multipart", f"The multipart body is malformed: {what}.")


class _Reader:
    """Looks for `\\r\\n--boundary` in a stream of chunks; never holds more than a field and a chunk."""

    def __init__(self, chunks: AsyncIterator[bytes], boundary: bytes) -> None:
        self._chunks = chunks
        self._delimiter = b"\r\n--" + boundary
        # The first delimiter has no line before it.
        self._buffer = b"\r\n"

    async def start(self) -> None:
        """Skip to behind the first delimiter."""
        await self._until(self._delimiter, MAX_HEADER_BYTES)

    async def at_end(self) -> bool:
        """Behind a delimiter: whether it was the last one."""
        while len(self._buffer) < 2:
            await self._more()
        if self._buffer[:2] == b"--":
            return True
        if self._buffer[:2] != b"\r\n":
            raise _invalid("a delimiter is followed by neither a line end nor --")
        self._buffer = self._buffer[2:]
        return False

    async def headers(self) -> bytes:
        """The header lines of the part that begins here."""
        return await self._until(b"\r\n\r\n", MAX_HEADER_BYTES)

    async def field(self, name: str) -> str:
        """The text of a metadata part; it is UTF-8 without NUL."""
        data = await self._until(self._delimiter, MAX_FIELD_BYTES)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise _invalid(f"the part {name} is not UTF-8") from None
        if "\0" in text:
            raise ApiError("invalid_input", f"{name}: NUL characters cannot be stored.", param=name)
        return text

    async def last_part(self) -> AsyncIterator[bytes]:
        """The bytes of the part that begins here; raises `invalid_multipart` when it is not the last."""
        keep = len(self._delimiter) - 1
        while (found := self._buffer.find(self._delimiter)) < 0:
            if len(self._buffer) > keep:
                ready, self._buffer = self._buffer[:-keep], self._buffer[-keep:]
                yield ready
            await self._more()
        if found:
            yield self._buffer[:found]
        self._buffer = self._buffer[found + len(self._delimiter) :]
        if not await self.at_end():
            raise _invalid("a part follows the archive")

    async def _until(self, mark: bytes, max_bytes: int) -> bytes:
        while (found := self._buffer.find(mark)) < 0:
            if len(self._buffer) > max_bytes:
                raise _invalid(f"a part or its headers are larger than {max_bytes} bytes")
            await self._more()
        data, self._buffer = self._buffer[:found], self._buffer[found + len(mark) :]
        return data

    async def _more(self) -> None:
        try:
            self._buffer += await anext(self._chunks)
        except StopAsyncIteration:
            raise _invalid("it ends before its last delimiter") from None
