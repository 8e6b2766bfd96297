"""Bytes by key: a directory, S3, GCS or Azure behind one URL. Published whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import obstore
from obstore.store import LocalStore, from_url

CHUNK_BYTES = 1024 * 1024


class Blobs:
    """`url` is `file:///dir`, `s3://…`, `gs://…` or `az://…`."""

    def __init__(self, url: str) -> None:
        self._store: Any
        if url.startswith("file://"):
            root = Path(url.removeprefix("file://"))
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._store = LocalStore(str(root))
        else:
            self._store = from_url(url)

    async def put(self, key: str, data: bytes) -> str:
        """Store bytes; returns their SHA-256 in hex."""
        await obstore.put_async(self._store, key, data)
        return hashlib.sha256(data).hexdigest()

    async def put_file(self, key: str, path: Path) -> None:
        """Store a file of this host."""
        await obstore.put_async(self._store, key, path)

    async def get(self, key: str) -> bytes:
        """All bytes; raises `FileNotFoundError`."""
        result = await obstore.get_async(self._store, key)
        return bytes(await result.bytes_async())

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes `start` (included) to `end` (excluded)."""
        return bytes(await obstore.get_range_async(self._store, key, start=start, end=end))

    async def stream(self, key: str) -> AsyncIterator[bytes]:
        """The bytes in pieces; raises `FileNotFoundError` before the first."""
        result = await obstore.get_async(self._store, key)
        async for chunk in result.stream(min_chunk_size=CHUNK_BYTES):
            yield bytes(chunk)

    async def list(self, prefix: str) -> list[str]:
        """Keys below a prefix that ends in `/`, sorted."""
        keys = [
            str(entry["path"]) async for batch in obstore.list(self._store, prefix=prefix) for entry in batch
        ]
        return sorted(keys)

    async def size_bytes(self, key: str) -> int:
        """Length; raises `FileNotFoundError`."""
        return int((await obstore.head_async(self._store, key))["size"])

    async def delete(self, key: str) -> None:
        """Remove; absent is done."""
        try:
            await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
