"""What is kept of a trial: raw streams, logs, artifacts, each file once, by content."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import PurePosixPath

from activities import following
from activities.sandboxes.base import Box
from activities.trial_context import Hands, TrialContext
from domain.errors import SandboxDeath
from store.fences import Fence
from store.streams import keep_files, read_stream
from store.trials import TrialFile

# One tree of a box; past it the rest is left out and listed.
TREE_MAX_BYTES = 256 * 1024 * 1024
ARTIFACTS_DIR = "/logs/artifacts"


class Capture:
    """Gathers files for one attempt and registers them all at the end."""

    def __init__(self, hands: Hands, context: TrialContext, fence: Fence) -> None:
        self._hands = hands
        self._attempt = context.attempt
        self._fence = fence
        self.context = context
        self.files: list[TrialFile] = []
        self.left_out: list[str] = []

    async def keep(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Store bytes under the trial folder's `path`."""
        digest = hashlib.sha256(data).hexdigest()
        key = f"trials/{self._attempt.trial_id}/{self._attempt.attempt_number}/{digest}"
        await self._hands.blobs.put(key, data)
        self.files.append(
            TrialFile(
                trial_id=self._attempt.trial_id,
                attempt_number=self._attempt.attempt_number,
                path=path,
                size_bytes=len(data),
                sha256=digest,
                blob_key=key,
                mode=mode,
            )
        )

    async def keep_stream(self, name: str, path: str) -> bytes:
        """Keep a raw stream as a file, byte for byte; absent when nothing was ever stored."""
        data = await read_stream(self._hands.db, self._attempt.trial_id, self._attempt.attempt_number, name)
        if data is not None:
            await self.keep(path, data)
        if data is not None and len(data) >= following.STREAM_MAX_BYTES:
            self.left_out.append(f"{path}: what came after {following.STREAM_MAX_BYTES} bytes")
        return data or b""

    async def keep_tree(self, box: Box, source: str, target: str) -> None:
        """Keep the regular files below `source`; a tree that is not there is no error."""
        try:
            data = await _gather(box.get_tar(source))
        except FileNotFoundError:
            return
        if data is None:
            self.left_out.append(f"{source}: larger than {TREE_MAX_BYTES} bytes")
            return
        for name, content, mode in await asyncio.to_thread(_regular_files, data):
            await self.keep(f"{target}/{name}" if name else target, content, mode)

    async def keep_box(self, box: Box) -> None:
        """Everything that a box holds of interest. A box that is gone keeps its secrets."""
        try:
            await self.keep_tree(box, "/logs/agent", "agent")
            await self.keep_tree(box, "/logs/verifier", "verifier")
            await self.keep_tree(box, ARTIFACTS_DIR, f"artifacts{ARTIFACTS_DIR}")
            for artifact in self.context.task.artifacts:
                source = str(PurePosixPath(box.workdir) / artifact.source)
                # Harbor's rule: an artifact stands under its destination, or its full source path.
                target = artifact.destination or source.lstrip("/")
                await self.keep_tree(box, source, f"artifacts/{target}")
        except SandboxDeath as death:
            self.left_out.append(f"the box is gone: {death}")

    async def register(self) -> None:
        """Make the kept files visible. Raises `Fenced` when another captures the attempt."""
        await keep_files(self._hands.db, self._fence, self.files)


async def _gather(chunks: AsyncIterator[bytes]) -> bytes | None:
    """All bytes, or None past the ceiling."""
    buffer = io.BytesIO()
    async for chunk in chunks:
        buffer.write(chunk)
        if buffer.tell() > TREE_MAX_BYTES:
            return None
    return buffer.getvalue()


def _text(name: str) -> str:
    """A file name as text: bytes that are no UTF-8, and NUL, are written as `\\xNN`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace").replace("\0", "\\x00")


def _regular_files(data: bytes) -> list[tuple[str, bytes, int]]:
    """(relative name, content, mode) of every regular file of a tar; links and devices are not followed."""
    files: list[tuple[str, bytes, int]] = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            parts = [part for part in member.name.split("/") if part not in ("", ".")]
            if content is not None and ".." not in parts:
                name = _text("/".join(parts))
                files.append((name, content.read(), 0o755 if member.mode & 0o111 else 0o644))
    return files
