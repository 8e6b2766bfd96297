"""What this host can do as the `local` provider, found by trying, with the reason for what it cannot."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from activities.sandboxes.local_host import NEEDED, LocalHost, find_program
from activities.sandboxes.local_spawn import run_program
from domain.providers import ProviderCapabilities, local_capabilities


@dataclass(frozen=True)
class LocalOffer:
    """`refusal` None: boxes run here, with `capabilities`."""

    capabilities: ProviderCapabilities
    refusal: str | None


async def local_offer(state_dir: Path, gateway_socket: Path) -> LocalOffer:
    """Judge this host. Never raises."""
    host = LocalHost(state_dir, gateway_socket, sys.executable)
    lacking = [name for name in NEEDED if find_program(name) is None]
    refusal = f"needs the program {lacking[0]!r}, which is not installed here" if lacking else None
    if refusal is None:
        refusal = await _why_no_namespaces(host)
    public = None if refusal else await host.why_not_public()
    return LocalOffer(local_capabilities(is_root=host.is_root, why_not_public=public), refusal)


async def _why_no_namespaces(host: LocalHost) -> str | None:
    tried = await run_program([*host.unshare(), "true"])
    if tried.exit_code == 0:
        return None
    return f"this machine makes no namespaces for us: {tried.stderr.decode(errors='replace').strip()}"
