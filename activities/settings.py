"""Settings of a worker process."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator
from pydantic_settings import NoDecode

from store.rules import JobSettings


def machine_cpus() -> float:
    """CPUs that this process may use."""
    return float(len(os.sched_getaffinity(0)))


def machine_memory_mb() -> int:
    """Physical memory of this machine, in MiB."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)


class WorkerSettings(JobSettings):
    """`EVOLVE_*`, checked at start."""

    temporal_address: str = Field(default="127.0.0.1:7233", description="`host:port` of Temporal's frontend.")
    temporal_namespace: str = Field(
        default="evolve", description="Its namespace; who can reach it is an operator."
    )
    host_id: str = Field(
        default_factory=socket.gethostname,
        description="Name of this host in leases and queues; must stay the same over restarts.",
    )
    host_cpus: float = Field(
        default_factory=machine_cpus, gt=0, description="What boxes may have at once, together."
    )
    host_memory_mb: int = Field(
        default_factory=machine_memory_mb, gt=0, description="What boxes may have at once, together."
    )
    cpu_overcommit: float = Field(
        default=4.0, ge=1, description="How many times `host_cpus` may be given away: agents mostly wait."
    )
    worker_build_id: str = Field(
        default="",
        description="Pins each run to the build of the worker that began it (Temporal's worker versioning). "
        "Default: runs go on with whatever release is there.",
    )
    state_dir: Path = Field(
        default=Path(),
        description="Boxes of the local provider, build contexts. Default `$EVOLVE_HOME/state`.",
    )
    bundles_dir: Path = Field(
        default=Path(), description="Harnesses, fetched once each. Default `$EVOLVE_HOME/bundles`."
    )
    npm_registry: str = Field(
        default="", description="Where harnesses are fetched from. Default: what npm on this host is set to."
    )
    image_budget_gb: float = Field(
        default=50.0, ge=0, description="Disk that built images may take, of each provider of this host."
    )
    bundle_budget_gb: float = Field(default=20.0, ge=0, description="Disk that harness bundles may take.")
    min_free_disk_gb: float = Field(
        default=2.0,
        ge=0,
        description="With less free on a disk that boxes fill, no trial starts on this host until there is.",
    )
    silent_after_sec: float = Field(
        default=300.0,
        gt=0,
        description="An agent that has written nothing for so long is shown as silent. It is not killed.",
    )
    reap_every_sec: float = Field(
        default=300.0, ge=10, description="How often what nobody needs any more is looked for."
    )
    agent_build_image: str = Field(
        default="python:3.12-bookworm", description="Image of the box that registered agents are built in."
    )
    gateway_socket: Path = Field(
        default=Path(), description="See the gateway's. Default `$EVOLVE_HOME/run/gateway/gateway.sock`."
    )
    health_socket: Path = Field(
        default=Path(), description="Unix socket of `/healthz`. Default `$EVOLVE_HOME/run/worker.sock`."
    )
    sandbox_provider: str = Field(
        default="auto",
        description="Provider of jobs that name none. `auto`: docker where an engine answers and the base "
        "image is obtainable, else local.",
    )
    provider_plugins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        description="Sandbox providers of your own, `module:factory` separated by commas.",
    )

    @field_validator("provider_plugins", mode="before")
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("provider_plugins")
    @classmethod
    def _is_import_path(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for plugin in value:
            module, _, factory = plugin.partition(":")
            if not module or not factory.isidentifier():
                raise ValueError(f"{plugin!r} is not of the form module:factory")
        return value

    @model_validator(mode="after")
    def _paths_default_to_home(self) -> Self:
        defaults = {
            "state_dir": self.home / "state",
            "bundles_dir": self.home / "bundles",
            "gateway_socket": self.home / "run" / "gateway" / "gateway.sock",
            "health_socket": self.home / "run" / "worker.sock",
        }
        for name, path in defaults.items():
            if getattr(self, name) == Path():
                object.__setattr__(self, name, path)
        return self
