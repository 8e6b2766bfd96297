"""What the server's rooms say of this machine, for `evolve doctor`: part of the composition root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from domain.providers import ProviderCapabilities, docker_capabilities

if TYPE_CHECKING:
    from store.settings import StoreSettings


@dataclass(frozen=True)
class ProviderVerdict:
    """`detail` says with what it runs, or why it cannot; `unenforced` which sizes bind nobody, and why."""

    name: str
    is_usable: bool
    detail: str
    unenforced: Mapping[str, str]


async def provider_verdicts() -> list[ProviderVerdict]:
    """docker and local, probed as a worker probes them."""
    from activities.sandboxes.docker_engine import docker_engine
    from activities.sandboxes.local_offer import local_offer
    from cli.stack.home import Home

    engine = await docker_engine()
    home = Home.from_environment()
    local = await local_offer(home.path / "state", home.path / "run" / "gateway" / "gateway.sock")
    public = local.capabilities.missing_here.get("public")
    docker = docker_capabilities(can_limit_storage=engine.can_limit_storage)
    return [
        _verdict("docker", engine.refusal, f"engine {engine.version}", docker),
        _verdict("local", local.refusal, _network_detail(public), local.capabilities),
    ]


def _verdict(
    name: str, refusal: str | None, detail: str, capabilities: ProviderCapabilities
) -> ProviderVerdict:
    # Of one that cannot be used nothing else is worth a line.
    unenforced = dict[str, str]() if refusal else capabilities.unenforced
    return ProviderVerdict(name, refusal is None, refusal or detail, unenforced)


def _network_detail(why_not_public: str | None) -> str:
    return f"boxes without network only: public {why_not_public}" if why_not_public else ""


def settings_in_force() -> dict[str, str]:
    """Every `EVOLVE_*` variable with the value that a process started now would use; secrets hidden.

    Raises pydantic's `ValidationError` for one that is wrong.
    """
    from activities.settings import WorkerSettings
    from api.settings import ApiSettings
    from cli.stack.home import Home
    from gateway.settings import GatewaySettings

    # As `evolve up` does for its children.
    os.environ.setdefault("EVOLVE_DATABASE_URL", Home.from_environment().database_url)
    kinds: tuple[type[StoreSettings], ...] = (ApiSettings, GatewaySettings, WorkerSettings)
    found: dict[str, str] = {}
    for settings in (kind.model_validate({}) for kind in kinds):
        for name in type(settings).model_fields:
            found[f"EVOLVE_{name.upper()}"] = str(getattr(settings, name))
    return found
