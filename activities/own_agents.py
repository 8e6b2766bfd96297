"""Registered agents built: once, in a throwaway box with the internet and no secret (contract 6.10).

A revision is built by the first trial that needs it; what it left in $PREFIX is a blob, which every other
host takes. The box is made and its build started under the revision's name, so that a worker that takes over
follows the build that runs. A build that failed by its own doing is not begun again for a while: its message
is kept beside where its tar would be, and every trial that wants the revision ends with it at once.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from activities.ending import end_box
from activities.harnesses.own import PREFIX, OwnAgent, built_path
from activities.sandboxes import process
from activities.sandboxes.base import Box, BoxSpec, BoxTag, ImageRequest, NetworkMode, SandboxProvider
from activities.sandboxes.file_lock import locked
from activities.sandboxes.process import Chunk, ExitStatus, ProcessSpec
from activities.trial_context import Hands
from domain.agents import INSTALL_SCRIPT
from domain.causes import AGENT_BUILD_FAILED
from domain.errors import InfrastructureFailure
from domain.reaping import AGENT_BUILD_JOB
from domain.vocabulary import SandboxProvider as SandboxProviderName
from store.agents import built_key, read_revision

BUILD_TIMEOUT_SEC = 1800.0
MAX_BUILT_BYTES = 512 * 1024 * 1024
SOURCE_DIR = "/opt/evolve-source"
PROCESS = "agent-build"
LOG_TAIL_CHARS = 2000
FAILURE_KEPT_SEC = 600.0
_MARGIN_SEC = 600.0
# A script without `#!` is run by the shell that finds it; without a script the tree is what was built.
_BUILD = f"""
mkdir -p "$PREFIX" || exit
if [ -f {INSTALL_SCRIPT} ]; then
    chmod 755 {INSTALL_SCRIPT} && ./{INSTALL_SCRIPT}
else
    cp -R . "$PREFIX"
fi
"""


class AgentBuildFailed(InfrastructureFailure):
    """A registered agent's own build failed; the message ends with what it said.

    No attempt of a trial follows it: the same source would end in the same way.
    """

    code = AGENT_BUILD_FAILED


class AgentBuildCut(InfrastructureFailure):
    """A build that was ended from outside: it says nothing of the agent, and another may go well."""

    code = "agent_build_cut"


async def ensure_built(hands: Hands, provider: SandboxProvider, agent: OwnAgent, fence: int) -> bool:
    """Have the agent's files at `built_path`; returns whether they were there already.

    Whoever else wants them on this host waits. Raises `AgentBuildFailed`, for `FAILURE_KEPT_SEC` without
    another build, and what the provider raises.
    """
    target = built_path(hands.settings.state_dir, agent.revision_id)
    if target.exists():
        return True
    async with locked(target.with_suffix(".lock")):
        if target.exists():
            return True
        part = target.with_suffix(".part")
        key = built_key(agent.revision_id)
        try:
            await _write(part, hands.blobs.stream(key), agent)
        except FileNotFoundError:
            await _build(_Build(hands, provider, agent, fence), part, target.with_suffix(".failed"))
            await hands.blobs.put_file(key, part)
        part.rename(target)
    return False


async def _build(build: _Build, part: Path, failed: Path) -> None:
    """The build, unless its last one failed lately; `failed` holds the message of one that did."""
    if told := _read_failure(failed):
        raise AgentBuildFailed(told)
    try:
        await build.run(part)
    except AgentBuildFailed as failure:
        _keep_failure(failed, failure.message)
        raise


def _read_failure(path: Path) -> str | None:
    is_fresh = path.exists() and time.time() - path.stat().st_mtime < FAILURE_KEPT_SEC
    return path.read_text() if is_fresh else None


def _keep_failure(path: Path, message: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(message)


class _Build:
    """One build of a revision, from its source to its $PREFIX as a tar."""

    def __init__(self, hands: Hands, provider: SandboxProvider, agent: OwnAgent, fence: int) -> None:
        self._hands = hands
        self._provider = provider
        self._agent = agent
        self._fence = fence

    async def run(self, target: Path) -> None:
        box = await self._provider.create(await self._spec())
        try:
            await self._execute(box)
            await _write(target, box.get_tar(PREFIX), self._agent)
        except FileNotFoundError:
            raise self._failed("its build left no $PREFIX") from None
        finally:
            await end_box(self._hands.db, self._provider, box.box_id)
        if not await asyncio.to_thread(_has_program, target):
            raise self._failed("its build left no executable in $PREFIX/bin")

    async def _spec(self) -> BoxSpec:
        settings = self._hands.settings
        context_dir = settings.state_dir / "agents" / "environment"
        dockerfile = f"FROM {settings.agent_build_image}\nWORKDIR {SOURCE_DIR}\n"
        context_dir.mkdir(parents=True, exist_ok=True)
        (context_dir / "Dockerfile").write_text(dockerfile)
        image = await self._provider.ensure_image(
            ImageRequest(
                installation_id=self._hands.installation_id,
                context_dir=context_dir,
                docker_image=None,
                context_digest=hashlib.sha256(dockerfile.encode()).hexdigest(),
                build_timeout_sec=BUILD_TIMEOUT_SEC,
            )
        )
        tag = BoxTag(
            installation_id=self._hands.installation_id,
            job_id=AGENT_BUILD_JOB,
            trial_id=self._agent.revision_id,
            attempt_number=1,
            step=0,
            role="agent",
            fence=self._fence,
        )
        lifetime_sec = BUILD_TIMEOUT_SEC + _MARGIN_SEC
        return BoxSpec(tag, image, self._network(), lifetime_sec=lifetime_sec, workdir=SOURCE_DIR)

    def _network(self) -> NetworkMode:
        """The internet, where this host's provider has it to give: a build that needs none works anywhere."""
        capabilities = self._hands.capabilities.get(SandboxProviderName(self._provider.name))
        return "public" if capabilities is None or "public" in capabilities.network_modes else "no-network"

    async def _execute(self, box: Box) -> None:
        await box.put_tar(SOURCE_DIR, await self._source())
        spec = ProcessSpec(
            name=PROCESS,
            argv=("/bin/sh", "-c", _BUILD),
            cwd=SOURCE_DIR,
            env={"PREFIX": PREFIX},
            deadline_sec=BUILD_TIMEOUT_SEC,
        )
        await process.start(box, spec)
        log = bytearray()
        async for item in process.follow(box, PROCESS, {}):
            if isinstance(item, Chunk):
                log = (log + item.data)[-4 * LOG_TAIL_CHARS :]
            elif item.exit_code is None and not item.is_deadline:
                raise AgentBuildCut(f"agent {self._agent.name}: its build was killed")
            elif item.exit_code != 0:
                raise self._failed(f"its build {_end(item)}", log)

    async def _source(self) -> bytes:
        """The source as an uncompressed tar."""
        row = await read_revision(self._hands.db, self._agent.revision_id)
        if row is None:
            raise self._failed("it was removed")
        data = await self._hands.blobs.get(row["source_key"])
        if row["source"] == "tarball":
            # Judged when it was registered: it does not unpack to more than we hold.
            return await asyncio.to_thread(gzip.decompress, data)
        return _tar_of_script(data)

    def _failed(self, what: str, log: bytes | bytearray = b"") -> AgentBuildFailed:
        tail = log.decode(errors="replace").strip()[-LOG_TAIL_CHARS:]
        return AgentBuildFailed(f"agent {self._agent.name}: {what}{f': {tail}' if tail else ''}")


def _end(status: ExitStatus) -> str:
    if status.is_deadline:
        return f"took longer than {BUILD_TIMEOUT_SEC:.0f} s"
    return f"ended with exit code {status.exit_code}"


async def _write(target: Path, chunks: AsyncIterator[bytes], agent: OwnAgent) -> None:
    """The chunks as a file, which is whole when this returns."""
    size = 0
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        async for chunk in chunks:
            size += len(chunk)
            if size > MAX_BUILT_BYTES:
                raise AgentBuildFailed(
                    f"agent {agent.name}: its $PREFIX has more than {MAX_BUILT_BYTES} bytes"
                )
            await asyncio.to_thread(file.write, chunk)


def _has_program(path: Path) -> bool:
    with tarfile.open(path, "r:") as archive:
        return any(_is_program(member) for member in archive)


def _is_program(member: tarfile.TarInfo) -> bool:
    is_executable = member.issym() or (member.isfile() and member.mode & 0o111 != 0)
    return is_executable and Path(member.name).parent == Path("bin")


def _tar_of_script(script: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        member = tarfile.TarInfo(INSTALL_SCRIPT)
        member.size, member.mode = len(script), 0o755
        archive.addfile(member, io.BytesIO(script))
    return packed.getvalue()
