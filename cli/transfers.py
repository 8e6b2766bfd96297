"""Archives over the wire: a multipart request, a resumable upload, a checked download (contract §1.14-18)."""

from __future__ import annotations

import base64
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import httpx

from cli.client import TRANSFER_TIMEOUT, Client, Json, json_object
from cli.errors import BrokenTransfer, CliError, Refused, Unreachable

RESUMABLE_ABOVE_BYTES = 256 * 1024 * 1024
CHUNK_BYTES = 6 * 1024 * 1024
READ_BYTES = 1 << 20
MAX_STUMBLES = 4
MAX_STATED_WAITS = 3
LONGEST_STATED_WAIT_SEC = 60.0
LONGEST_BACKOFF_SEC = 4.0

Progress = Callable[[int, int], None]
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Upload:
    """An archive of `size_bytes` for `route`, with the metadata that precedes it; absent options are None."""

    route: str
    fields: Mapping[str, str | None]
    filename: str
    archive: IO[bytes]
    size_bytes: int

    @property
    def stated_fields(self) -> dict[str, str]:
        return {name: value for name, value in self.fields.items() if value is not None}


def send_archive(client: Client, upload: Upload, on_progress: Progress) -> Json:
    """What the server answers to the accepted archive. Large archives are sent in resumable chunks."""
    if upload.size_bytes > RESUMABLE_ABOVE_BYTES:
        return ResumableUpload(client, upload, on_progress).send()
    upload.archive.seek(0)
    response = client.request(
        "POST",
        upload.route,
        data=upload.stated_fields,
        files={"archive": (upload.filename, upload.archive, "application/gzip")},
        timeout=TRANSFER_TIMEOUT,
    )
    on_progress(upload.size_bytes, upload.size_bytes)
    return json_object(response)


class ResumableUpload:
    """One session: opened, filled chunk by chunk wherever the server stands, completed."""

    def __init__(
        self,
        client: Client,
        upload: Upload,
        on_progress: Progress,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.client = client
        self.upload = upload
        self.on_progress = on_progress
        self.sleep = sleep

    def send(self) -> Json:
        """The accepted import. Raises `Refused` or `Unreachable` once patience is at its end."""
        opening = {
            "size": self.upload.size_bytes,
            "sha256": _sha256(self.upload.archive),
            **self.upload.stated_fields,
        }
        session = json_object(self._request("POST", f"{self.upload.route}/uploads", json=opening))
        route = f"{self.upload.route}/uploads/{session['id']}"
        self._fill(route)
        return json_object(self._patiently(lambda: self._request("POST", f"{route}/complete")))

    def _fill(self, route: str) -> None:
        offset = self._patiently(lambda: self._offset(route))
        stumbles = 0
        while offset < self.upload.size_bytes:
            try:
                offset = self._send_chunk(route, offset)
                stumbles = 0
                self.on_progress(offset, self.upload.size_bytes)
            except (Refused, Unreachable) as error:
                stumbles += 1
                is_stale = isinstance(error, Refused) and error.status == 409
                if stumbles >= MAX_STUMBLES or not (is_stale or isinstance(error, Unreachable)):
                    raise
                self.sleep(_backoff_sec(stumbles))
                offset = self._patiently(lambda: self._offset(route))

    def _send_chunk(self, route: str, offset: int) -> int:
        self.upload.archive.seek(offset)
        chunk = self.upload.archive.read(CHUNK_BYTES)
        headers = {
            "Content-Type": "application/offset+octet-stream",
            "Upload-Offset": str(offset),
            "Upload-Checksum": f"sha256 {base64.b64encode(hashlib.sha256(chunk).digest()).decode()}",
        }
        reached = _upload_offset(self._request("PATCH", route, content=chunk, headers=headers))
        if reached <= offset:
            raise BrokenTransfer(f"the upload does not advance: the server stays at {reached} bytes")
        return reached

    def _offset(self, route: str) -> int:
        return _upload_offset(self._request("HEAD", route))

    def _request(self, method: str, route: str, **options: Any) -> httpx.Response:
        """One request; a stated wait (429, 503) is waited for, a few times."""
        for _ in range(MAX_STATED_WAITS):
            try:
                return self.client.request(method, route, timeout=TRANSFER_TIMEOUT, **options)
            except Refused as error:
                if error.status not in (429, 503):
                    raise
                wait_sec = max(error.retry_after_sec or 0.0, _backoff_sec(1))
                self.sleep(min(wait_sec, LONGEST_STATED_WAIT_SEC))
        return self.client.request(method, route, timeout=TRANSFER_TIMEOUT, **options)

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """`ask`, asked again when no answer comes: for requests that may be repeated."""
        for stumble in range(1, MAX_STUMBLES):
            try:
                return ask()
            except Unreachable:
                self.sleep(_backoff_sec(stumble))
        return ask()


def _backoff_sec(stumble: int) -> float:
    return min(0.5 * 2 ** (stumble - 1), LONGEST_BACKOFF_SEC)


def _upload_offset(response: httpx.Response) -> int:
    try:
        return int(response.headers["Upload-Offset"])
    except (KeyError, ValueError):
        raise BrokenTransfer("the server did not say how much of the upload it holds") from None


def _sha256(file: IO[bytes]) -> str:
    file.seek(0)
    digest = hashlib.sha256()
    while block := file.read(READ_BYTES):
        digest.update(block)
    return digest.hexdigest()


def download_archive(
    client: Client, route: str, target: Path, query: Mapping[str, str] | None = None
) -> None:
    """Save a route's archive as `target` once its length and digest are what the server stated."""
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f"{target.name[:100]}.", suffix=".part", dir=target.parent)
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _receive(client, route, file, dict(query or {}))
        part.replace(target)
    except OSError as error:
        raise CliError(f"{target}: {error.strerror or error}", code="write_failed") from None
    finally:
        part.unlink(missing_ok=True)


def _receive(client: Client, route: str, file: IO[bytes], query: Mapping[str, str]) -> None:
    digest = hashlib.sha256()
    received = 0
    with client.stream("GET", route, params=query, timeout=TRANSFER_TIMEOUT) as response:
        for block in response.iter_raw(READ_BYTES):
            digest.update(block)
            received += len(block)
            file.write(block)
        length = response.headers.get("Content-Length")
        stated = response.headers.get("x-package-sha256")
    if length is not None and received != int(length):
        raise BrokenTransfer(f"the download ended after {received} of {length} bytes")
    if stated is not None and digest.hexdigest() != stated.lower():
        raise BrokenTransfer(f"the download's sha256 is {digest.hexdigest()}, not {stated} as stated")
