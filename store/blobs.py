"""Bytes by key: a directory, S3, GCS or Azure behind one URL. Published whole or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import obstore
from obstore.store import LocalStore, from_url

CHUNK_BYTES = 1024 * 1024
# What obstore calls a file of a directory until it is whole; its listings leave such names out.
_HALF_WRITTEN = re.compile(r".+#\d+")


class Blobs:
    """`url` is `file:///dir`, `s3://…`, `gs://…` or `az://…`."""

    def __init__(self, url: str) -> None:
        self._store: Any
        self._root: Path | None = None
        if url.startswith("file://"):
            root = Path(url.removeprefix("file://"))
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._root = root
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

    async def half_written(self, before: datetime) -> dict[str, int]:
        """What writers that ended before left in a directory: name → bytes. Empty for an object store."""
        return await asyncio.to_thread(self._half_written, before.timestamp())

    def _half_written(self, before: float) -> dict[str, int]:
        if self._root is None:
            return {}
        found = {path: path.stat() for path in self._root.rglob("*#*") if _HALF_WRITTEN.fullmatch(path.name)}
        return {
            str(path.relative_to(self._root)): stat.st_size
            for path, stat in found.items()
            if stat.st_mtime < before
        }

    async def delete_half_written(self, name: str) -> None:
        """Remove one of them; absent is done."""
        if self._root is not None and _HALF_WRITTEN.fullmatch(Path(name).name):
            await asyncio.to_thread((self._root / name).unlink, missing_ok=True)

    async def delete_below(self, prefix: str) -> None:
        """Remove whatever is below a prefix that ends in `/`."""
        for key in await self.list(prefix):
            await self.delete(key)

    async def delete(self, key: str) -> None:
        """Remove; absent is done."""
        try:
            await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
