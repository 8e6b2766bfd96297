"""The one interface that every sandbox provider implements.

A *box* is one running sandbox. Everything a provider makes carries a `BoxTag` **before** it is made,
so that `create` can find what an earlier try made, and `list` can find what nobody leases any more.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, Protocol

NetworkMode = Literal["no-network", "allowlist", "public"]
BoxRole = Literal["agent", "verifier"]


@dataclass(frozen=True)
class BoxTag:
    """Who a box belongs to. The fence is the creating activity's try: of two boxes the higher one stays."""

    installation_id: str
    job_id: str
    trial_id: str
    attempt_number: int
    step: int
    role: BoxRole
    fence: int

    @property
    def name(self) -> str:
        """The identity without the fence: what `create` finds or makes; safe as a container name."""
        return f"evolve-{self.trial_id}-{self.attempt_number}-{self.step}-{self.role}"


@dataclass(frozen=True)
class ImageRequest:
    """One task's environment. `context_dir` is the task's `environment/` on this host."""

    installation_id: str
    context_dir: Path
    docker_image: str | None
    context_digest: str
    build_timeout_sec: float


@dataclass(frozen=True)
class ImageRef:
    """A built image. `id` is what the trial records; `handle` is what this provider starts it by.

    `user` is its USER, None for root. `starts_service`: its ENTRYPOINT does more than wait.
    """

    id: str
    handle: str
    base_image_replaced: bool = False
    user: str | None = None
    starts_service: bool = False


@dataclass(frozen=True)
class Mount:
    """A folder of this host that a box sees at `target`, and can never change. Later files in it are seen."""

    source: Path
    target: str


@dataclass(frozen=True)
class BoxSpec:
    """`env` holds literals only, never a secret. `lifetime_sec` is at least as long as the trial may last.

    `mounts` are for providers on this host; elsewhere the box simply does not have them.
    """

    tag: BoxTag
    image: ImageRef
    network_mode: NetworkMode
    lifetime_sec: float
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    workdir: str | None = None
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True)
class RunResult:
    """A short command's end. A signal is 128 + its number, as a shell says it."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class ProcessInfo:
    """A process of the box. `(pid, start_ticks)` names it: pids are used again, start times are not."""

    pid: int
    start_ticks: int
    command: str


ProcessKey = tuple[int, int]

PIDS_LIMIT = 1024
"""Processes of a box. More lets one fork bomb bring a small host to a halt: 4,096 were seen to."""


@dataclass(frozen=True)
class BoxListing:
    """What the provider says exists, for the reaper. `made_at` may be later where a later try adopted it."""

    box_id: str
    tag: BoxTag
    is_running: bool
    made_at: datetime


@dataclass(frozen=True)
class ImageListing:
    """A built image on a disk; `name` is what `remove_image` knows it by, `id` that of its `ImageRef`."""

    name: str
    id: str
    size_bytes: int
    made_at: datetime


class Box(Protocol):
    """One running sandbox. Paths are absolute and inside the box.

    Every method raises `SandboxDeath` when the box is gone, and `ProviderUnreachable` when that
    cannot be told (domain.errors).
    """

    @property
    def box_id(self) -> str: ...

    @property
    def workdir(self) -> str:
        """Where the agent works: the task's declared one, else the image's WORKDIR, else /app or /."""
        ...

    async def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_sec: float = 30.0,
    ) -> RunResult:
        """A short command, waited for. Default user: root of the box."""
        ...

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Bytes of a regular file; raises `FileNotFoundError`. Links are not followed out of the box."""
        ...

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None) -> None: ...

    async def put_tar(self, path: str, tar: bytes) -> None:
        """Unpack an uncompressed tar below `path` (made when absent); owners in it are the box's root."""
        ...

    def get_tar(self, path: str) -> AsyncIterator[bytes]:
        """The tree at `path` as an uncompressed tar stream, names relative to it; `FileNotFoundError`."""
        ...

    async def set_network(self, mode: NetworkMode) -> None: ...

    async def processes(self) -> list[ProcessInfo]: ...

    async def service_exit_code(self) -> int | None:
        """How the image's own service (its ENTRYPOINT) ended; None while it runs or where there is none."""
        ...

    async def sweep(self, keep: Collection[ProcessKey]) -> int:
        """Kill all that is not in `keep`, from outside the box where possible, until none is left.

        Returns how many were killed. Everything is stopped atomically first, so nothing forks away.
        """
        ...


class SandboxProvider(Protocol):
    """How boxes of one kind are made, found and ended."""

    @property
    def name(self) -> str: ...

    async def ensure_image(self, request: ImageRequest) -> ImageRef:
        """Find or build, single-flight per content digest. Raises `ImageBuildFailed` with the log's end."""
        ...

    async def create(self, spec: BoxSpec) -> Box:
        """Find the box of `spec.tag.name`, or make it. Raises `CapacityWait` or `ProviderCreateFailure`."""
        ...

    async def attach(self, box_id: str) -> Box:
        """The running box; raises `SandboxDeath` when there is none."""
        ...

    @property
    def disks(self) -> tuple[Path, ...]:
        """Folders of this host that boxes and images fill; none where they are elsewhere."""
        ...

    async def list(self, installation_id: str) -> Sequence[BoxListing]:
        """Every box of this installation, running or not; never another's."""
        ...

    async def destroy(self, box_id: str) -> None:
        """End it at once with all that belongs to it; absent is done. Raises `DeleteRefused`."""
        ...

    async def stop(self, box_id: str) -> None:
        """Let nothing in it run any more, for one that may not be destroyed; absent is done."""
        ...

    async def clear_litter(self, *, is_dry: bool) -> Sequence[str]:
        """Remove what belongs to no box and no living process, or only name it."""
        ...

    async def images(self) -> Sequence[ImageListing]:
        """Images that this installation built here, those excepted that every box needs."""
        ...

    async def remove_image(self, name: str) -> bool:
        """False when a box still needs it; absent is done. `ensure_image` builds it again."""
        ...

    async def close(self) -> None: ...
