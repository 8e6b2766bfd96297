"""This host: which providers it offers, which is the default and why, and the lease that says it lives."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import structlog

from activities.disk import low_disk
from activities.sandboxes.base import SandboxProvider
from activities.sandboxes.docker import DockerProvider
from activities.sandboxes.docker_engine import docker_engine
from activities.sandboxes.local import LocalProvider
from activities.sandboxes.local_offer import local_offer
from activities.settings import WorkerSettings
from domain.providers import PROVIDERS, ProviderCapabilities, docker_capabilities, provider_table
from domain.vocabulary import SandboxProvider as SandboxProviderName
from store.database import Database, now
from store.hosts import LEASE_SEC, Host, renew_host

log = structlog.get_logger()

ProviderFactory = Callable[[WorkerSettings, str], SandboxProvider]
"""A plugin: (settings, installation id) → provider. One of a known name takes the place of ours."""


@dataclass
class HostProviders:
    """What runs here. `offers` maps every provider name → {"ok", "reason", "paused"}."""

    providers: dict[str, SandboxProvider] = field(default_factory=dict[str, SandboxProvider])
    offers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    capabilities: Mapping[SandboxProviderName, ProviderCapabilities] = field(
        default_factory=lambda: PROVIDERS
    )
    default: str = ""
    default_reason: str = ""

    def offer(self, provider: SandboxProvider) -> None:
        """Add a provider that can run here."""
        self.providers[provider.name] = provider
        self.offers[provider.name] = {"ok": True, "reason": None}

    def look_at_disks(self, home: Path, min_free_gb: float) -> None:
        """Let no trial start with a provider whose disk is nearly full, until it is not."""
        for provider in self.providers.values():
            low = low_disk((home, *provider.disks), min_free_gb)
            if low != self.offers[provider.name].get("paused"):
                log.warning("admission by disk", provider=provider.name, paused=low)
            self.offers[provider.name]["paused"] = low

    def refuse(self, name: str, reason: str) -> None:
        """Say why a provider cannot run here."""
        self.offers[name] = {"ok": False, "reason": reason}


def host_queue(host_id: str) -> str:
    """Short and cleanup work of one host: a cancel never waits behind a follower."""
    return f"host-{host_id}"


def host_follow_queue(host_id: str) -> str:
    """The long work (opening boxes, agents, verifiers, builds) of one host."""
    return f"host-{host_id}-follow"


async def open_providers(settings: WorkerSettings, installation_id: str) -> HostProviders:
    """Probe this host. Plugins come last, so that one may replace a provider of ours."""
    host = HostProviders()
    found = (await _open_docker(settings, installation_id, host), await _open_local(settings, host))
    host.capabilities = provider_table(*found)
    for plugin in settings.provider_plugins:
        module, _, name = plugin.partition(":")
        factory: ProviderFactory = getattr(importlib.import_module(module), name)
        host.offer(factory(settings, installation_id))
    _choose_default(settings, host)
    return host


async def _open_docker(
    settings: WorkerSettings, installation_id: str, host: HostProviders
) -> ProviderCapabilities:
    engine = await docker_engine()
    if engine.refusal:
        host.refuse("docker", engine.refusal)
    else:
        host.offer(DockerProvider(engine, installation_id, settings.state_dir, settings.gateway_socket))
    return docker_capabilities(can_limit_storage=engine.can_limit_storage)


async def _open_local(settings: WorkerSettings, host: HostProviders) -> ProviderCapabilities:
    offer = await local_offer(settings.state_dir, settings.gateway_socket)
    if offer.refusal:
        host.refuse("local", offer.refusal)
    else:
        host.offer(LocalProvider(settings.state_dir, settings.gateway_socket))
    return offer.capabilities


def _choose_default(settings: WorkerSettings, host: HostProviders) -> None:
    wanted = settings.sandbox_provider
    if wanted != "auto":
        host.default, host.default_reason = wanted, "EVOLVE_SANDBOX_PROVIDER names it"
    elif "docker" in host.providers:
        host.default, host.default_reason = "docker", "a Docker engine answers"
    else:
        reason = host.offers["docker"]["reason"]
        host.default, host.default_reason = "local", f"docker is not offered: {reason}"


async def keep_lease(db: Database, settings: WorkerSettings, host: HostProviders) -> None:
    """Renew this host's lease until cancelled; a store that is away is waited for."""
    row = Host(
        id=settings.host_id,
        providers=host.offers,
        default_provider=host.default,
        default_reason=host.default_reason,
        queue=host_queue(settings.host_id),
        follow_queue=host_follow_queue(settings.host_id),
        cpus=settings.host_cpus,
        memory_mb=settings.host_memory_mb,
        code_version=version("evolve-evals"),
        lease_expires_at=now(),
    )
    while True:
        try:
            host.look_at_disks(settings.home, settings.min_free_disk_gb)
            row.providers = host.offers
            await renew_host(db, row)
        except Exception as error:
            log.warning("the host's lease could not be renewed", error=repr(error))
        await asyncio.sleep(LEASE_SEC / 5)
