"""Task directories on this host: unpacked once from the blob store, by content."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from activities.archives import unpack_archive
from store.blobs import Blobs


class TaskPackages:
    """A cache directory of unpacked task packages."""

    def __init__(self, root: Path, blobs: Blobs) -> None:
        self._root = root
        self._blobs = blobs
        self._locks: dict[str, asyncio.Lock] = {}

    async def directory(self, package_key: str, sha256: str) -> Path:
        """The unpacked task; fetched and unpacked by the first that asks."""
        target = self._root / sha256
        async with self._locks.setdefault(sha256, asyncio.Lock()):
            if not target.exists():
                await self._fetch(package_key, target)
        return target

    async def _fetch(self, package_key: str, target: Path) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._root, prefix=".fetch-") as scratch:
            archive, unpacked = Path(scratch) / "package", Path(scratch) / "unpacked"
            with archive.open("wb") as file:
                async for chunk in self._blobs.stream(package_key):
                    file.write(chunk)
            await asyncio.to_thread(unpack_archive, archive, unpacked)
            try:
                unpacked.rename(target)
            except OSError:
                # Another process of this host was first; its content is the same by name.
                if not await asyncio.to_thread(target.exists):
                    raise
