"""What each sandbox provider can honour: data, which `domain.support` compares with a task.

Ceilings of e2b, daytona and modal: contract section 5. Docker and local are bounded by their host, which
admits boxes by what it declares (not by this table).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, Field

from domain.task_config import NetworkMode
from domain.vocabulary import SandboxProvider

__all__ = [
    "PROVIDERS",
    "ProviderCapabilities",
    "docker_capabilities",
    "local_capabilities",
    "provider_table",
]

_DAY_SEC = 86_400.0


class ProviderCapabilities(BaseModel):
    """One provider. A ceiling or lifetime of None is the host's own, or unbounded."""

    model_config = ConfigDict(frozen=True)

    name: SandboxProvider
    is_runnable: bool
    """Whether this release can run boxes there at all."""
    network_modes: frozenset[NetworkMode]
    supports_compose: bool = False
    supports_docker_image: bool = True
    supports_run_instructions: bool = True
    """Whether a Dockerfile's RUN is carried out."""
    supports_users: bool = True
    """Whether the agent may run as a user other than the box's own."""
    max_gpus: int = 0
    max_cpus: float | None = None
    max_memory_mb: int | None = None
    max_storage_mb: int | None = None
    lifetime_sec: float | None = None
    base_image_replaced: bool = False
    """True where the machine's own system files stand in for the task's image."""
    missing_here: Mapping[str, str] = Field(default_factory=dict[str, str])
    """Why this host lacks what the provider otherwise has: `public`, `run`, `users` → a clause for people."""
    unenforced: Mapping[str, str] = Field(default_factory=dict[str, str])
    """Sizes that bind nobody on this host: `cpus`, `memory_mb`, `storage_mb` → why, for people. A task that
    declares one runs all the same, and its trials say so."""


_WHY_NOT_LOCAL: Mapping[str, str] = {
    "cpus": "this worker may use no cgroup controller `cpu`",
    "memory_mb": "this worker may use no cgroup controller `memory`",
    "storage_mb": "sized disks need root, /dev/loop-control and mkfs.ext4",
}
_EVERY_SIZE = frozenset(_WHY_NOT_LOCAL)


def docker_capabilities(*, can_limit_storage: bool) -> ProviderCapabilities:
    """`docker` on an engine of this kind."""
    why = "the engine's storage driver has no quotas (overlay2 has them on xfs with `pquota`)"
    return ProviderCapabilities(
        name=SandboxProvider.DOCKER,
        is_runnable=True,
        network_modes=frozenset({"no-network", "public"}),
        unenforced={} if can_limit_storage else {"storage_mb": why},
    )


def local_capabilities(
    *, is_root: bool, why_not_public: str | None, enforced: frozenset[str] = _EVERY_SIZE
) -> ProviderCapabilities:
    """`local` as a worker of this kind offers it; `why_not_public` None: its boxes can reach the internet."""
    missing: dict[str, str] = {}
    if why_not_public is not None:
        missing["public"] = why_not_public
    if not is_root:
        missing["run"] = "a Dockerfile's RUN needs the worker to be root"
        missing["users"] = "running the agent as another user needs the worker to be root"
    return ProviderCapabilities(
        name=SandboxProvider.LOCAL,
        is_runnable=True,
        network_modes=frozenset({"no-network"} if why_not_public else {"no-network", "public"}),
        supports_docker_image=False,
        supports_run_instructions=is_root,
        supports_users=is_root,
        base_image_replaced=True,
        missing_here=missing,
        unenforced={size: why for size, why in _WHY_NOT_LOCAL.items() if size not in enforced},
    )


_CLOUD_MODES: frozenset[NetworkMode] = frozenset({"no-network", "allowlist", "public"})

PROVIDERS: Mapping[SandboxProvider, ProviderCapabilities] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            docker_capabilities(can_limit_storage=True),
            local_capabilities(is_root=True, why_not_public=None),
            ProviderCapabilities(
                name=SandboxProvider.E2B,
                is_runnable=False,
                network_modes=_CLOUD_MODES,
                supports_compose=True,
                max_cpus=8,
                max_memory_mb=8192,
                max_storage_mb=20 * 1024,
                lifetime_sec=_DAY_SEC,
            ),
            ProviderCapabilities(
                name=SandboxProvider.DAYTONA,
                is_runnable=False,
                network_modes=_CLOUD_MODES,
                supports_compose=True,
                max_cpus=4,
                max_memory_mb=8192,
                max_storage_mb=10 * 1024,
            ),
            ProviderCapabilities(
                name=SandboxProvider.MODAL,
                is_runnable=False,
                network_modes=_CLOUD_MODES,
                max_gpus=8,
                max_cpus=16,
                max_memory_mb=32_768,
                max_storage_mb=512 * 1024,
                lifetime_sec=_DAY_SEC,
            ),
        )
    }
)
"""Every provider at its best; `local` as root. A host's own are `provider_table`'s."""


def provider_table(*found: ProviderCapabilities) -> Mapping[SandboxProvider, ProviderCapabilities]:
    """`PROVIDERS` with those that a host has looked at as it offers them."""
    return MappingProxyType({**PROVIDERS, **{each.name: each for each in found}})
