"""What this host can do as the `local` provider, found by trying, with the reason for what it cannot."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from activities.sandboxes.local_host import LocalHost
from activities.sandboxes.local_life import probe_box
from domain.errors import EvolveError
from domain.providers import ProviderCapabilities, local_capabilities


@dataclass(frozen=True)
class LocalOffer:
    """`refusal` None: boxes run here, with `capabilities`, which name the sizes that bind nobody."""

    capabilities: ProviderCapabilities
    refusal: str | None


async def local_offer(state_dir: Path, gateway_socket: Path) -> LocalOffer:
    """Judge this host by making a box and ending it. Never raises."""
    host = LocalHost(state_dir, gateway_socket, sys.executable)
    refusal: str | None = None
    why_not_public: str | None = None
    try:
        host.make_state_dir()
        await probe_box(host)
        why_not_public = await host.why_not_public()
    except (EvolveError, OSError, TimeoutError) as error:
        refusal = str(error)
    capabilities = local_capabilities(
        is_root=host.is_root, why_not_public=why_not_public, enforced=host.enforced_limits()
    )
    return LocalOffer(capabilities, refusal)
