"""What is kept of a trial: raw streams, logs, artifacts, the agent's home, each content once, by digest.

Nothing but small files is held whole in memory (`kept_trees`), and the values of known secrets are masked
in all of it, and counted (`masks`).
"""

from __future__ import annotations

import asyncio
import io
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from activities import following
from activities.kept_trees import KeptContent, TreeMember, content_of, spool, tree_members
from activities.masks import SecretMask
from activities.sandboxes.base import Box
from activities.trial_context import Hands, TrialContext
from domain.errors import SandboxDeath
from store.fences import Fence
from store.streams import keep_files
from store.traces import stored_output
from store.trials import TrialFile

# One tree of a box; what comes after it is left out and listed.
TREE_MAX_BYTES = 256 * 1024 * 1024
STREAM_END_BYTES = 64 * 1024
ARTIFACTS_DIR = "/logs/artifacts"


@dataclass(frozen=True)
class Entry:
    """One entry of a tree, with the file it was kept as, or why it was not."""

    member: TreeMember
    file: TrialFile | None = None
    reason: str | None = None


Wanted = Callable[[str], bool]
"""Whether an entry is kept, by its name in the tree."""


def everything(_: str) -> bool:
    """No entry is left out."""
    return True


class Capture:
    """Gathers files for one attempt and registers them all at the end.

    `secrets` are values that are not to be kept, by name. `masked` tells how often each was found.
    """

    def __init__(
        self, hands: Hands, context: TrialContext, fence: Fence, secrets: Mapping[str, str] | None = None
    ) -> None:
        self.hands = hands
        self.fence = fence
        self.context = context
        self.files: list[TrialFile] = []
        self.left_out: list[str] = []
        self._mask = SecretMask(secrets or {})

    @property
    def masked(self) -> dict[str, int]:
        """How often the value of each secret was replaced."""
        return dict(self._mask.counts)

    async def keep(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Store text under the trial folder's `path`."""
        async with _scratch() as scratch:
            content = await asyncio.to_thread(
                content_of, io.BytesIO(data), scratch / "content", self._mask, is_text=True
            )
            await self._put(path, content, mode)

    def keep_again(self, file: TrialFile, path: str) -> None:
        """Let a kept file stand at a second path."""
        self.files.append(TrialFile(**{**file.model_dump(), "path": path}))

    async def keep_stream(self, name: str, path: str) -> bytes:
        """Keep a raw stream as a file, byte for byte but for secrets; absent when nothing was stored.

        Returns its last `STREAM_END_BYTES`.
        """
        attempt = self.context.attempt
        async with _scratch() as scratch:
            output = stored_output(self.hands.db, attempt.trial_id, attempt.attempt_number, name)
            await spool(_data_of(output), scratch / "stream", following.STREAM_MAX_BYTES)
            size = (scratch / "stream").stat().st_size
            if size == 0:
                return b""
            content, end = await asyncio.to_thread(self._stream, scratch)
            await self._put(path, content, 0o644)
        if size >= following.STREAM_MAX_BYTES:
            self.left_out.append(f"{path}: what came after {following.STREAM_MAX_BYTES} bytes")
        return end

    def _stream(self, scratch: Path) -> tuple[KeptContent, bytes]:
        with (scratch / "stream").open("rb") as file:
            content = content_of(file, scratch / "content", self._mask, is_text=True)
        if content.path is None:
            return content, content.data[-STREAM_END_BYTES:]
        with content.path.open("rb") as file:
            file.seek(max(0, content.size_bytes - STREAM_END_BYTES))
            return content, file.read()

    async def keep_tree(self, box: Box, source: str, target: str) -> None:
        """Keep the regular files below `source`; a tree that is not there is no error."""
        async for entry in self.tree(box, source, target, everything):
            if entry.reason is not None and not entry.member.name:
                self.left_out.append(f"{source}: {entry.reason}")

    async def tree(self, box: Box, source: str, target: str, wanted: Wanted) -> AsyncIterator[Entry]:
        """Keep what is `wanted` below `source`, entry by entry; none when there is no such tree.

        A last entry without a name tells that the tree was larger than is kept.
        """
        async with _scratch() as scratch:
            archive = scratch / "tar"
            try:
                is_cut = await spool(box.get_tar(source), archive, TREE_MAX_BYTES)
            except FileNotFoundError:
                return
            async for entry in self.archive(archive, target, wanted, is_cut=is_cut):
                yield entry
        if is_cut:
            cut = TreeMember("", 0, "cut")
            yield Entry(cut, reason=f"what came after {TREE_MAX_BYTES} bytes was left out")

    async def archive(
        self, archive: Path, target: str, wanted: Wanted, *, is_cut: bool
    ) -> AsyncIterator[Entry]:
        """Keep what is `wanted` of a tar on this host's disk, entry by entry."""
        async with _scratch() as scratch:
            members = tree_members(archive, scratch / "content", self._mask, wanted, is_cut=is_cut)
            while (member := await asyncio.to_thread(next, members, None)) is not None:
                yield await self._entry(member, target)

    async def _entry(self, member: TreeMember, target: str) -> Entry:
        if member.content is None:
            return Entry(member, reason=member.kind)
        path = f"{target}/{member.name}" if member.name else target
        return Entry(member, await self._put(path, member.content, 0o755 if member.mode & 0o111 else 0o644))

    async def keep_logs(self, box: Box) -> None:
        """What an agent wrote where logs belong."""
        await self.keep_tree(box, "/logs/agent", self.context.place("agent"))

    async def keep_box(self, box: Box) -> None:
        """Everything that a box holds of interest, of a step in the step's own folder.

        A box that is gone keeps its secrets.
        """
        try:
            await self.keep_logs(box)
            await self.keep_tree(box, "/logs/verifier", self.context.place("verifier"))
            await self.keep_tree(box, ARTIFACTS_DIR, self.context.place(f"artifacts{ARTIFACTS_DIR}"))
            for artifact in self.context.task.artifacts:
                source = str(PurePosixPath(box.workdir) / artifact.source)
                # Harbor's rule: an artifact stands under its destination, or its full source path.
                target = artifact.destination or source.lstrip("/")
                await self.keep_tree(box, source, self.context.place(f"artifacts/{target}"))
        except SandboxDeath as death:
            self.left_out.append(f"the box is gone: {death}")

    async def register(self) -> None:
        """Make the kept files visible. Raises `Fenced` when another captures the attempt."""
        await keep_files(self.hands.db, self.fence, self.files)

    async def _put(self, path: str, content: KeptContent, mode: int) -> TrialFile:
        attempt = self.context.attempt
        key = f"trials/{attempt.trial_id}/{attempt.attempt_number}/{content.sha256}"
        if content.path is None:
            await self.hands.blobs.put(key, content.data)
        else:
            await self.hands.blobs.put_file(key, content.path)
        file = TrialFile(
            trial_id=attempt.trial_id,
            attempt_number=attempt.attempt_number,
            path=path,
            size_bytes=content.size_bytes,
            sha256=content.sha256,
            blob_key=key,
            mode=mode,
        )
        self.files.append(file)
        return file


async def _data_of(output: AsyncIterator[tuple[int, bytes]]) -> AsyncIterator[bytes]:
    async for _, data in output:
        yield data


@asynccontextmanager
async def _scratch() -> AsyncIterator[Path]:
    """A directory of this host's disk, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="evolve-keep-") as directory:
        yield Path(directory)
