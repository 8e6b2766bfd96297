"""The one bridge of an installation's public boxes: their pods' firewalls part them, and it does too."""

from __future__ import annotations

from pathlib import Path

from aiodocker import Docker

from activities.sandboxes.base import NetworkMode
from activities.sandboxes.docker_labels import INSTALLATION, PART
from activities.sandboxes.file_lock import locked

NO_NETWORK = "none"


class Networks:
    """What each network mode is on the engine. The bridge is made when first needed."""

    def __init__(self, docker: Docker, installation_id: str, state_dir: Path) -> None:
        self._docker = docker
        self._labels = {INSTALLATION: installation_id, PART: "network"}
        self._lock = state_dir / "network.lock"
        self._public_name = f"evolve-{installation_id[:8].lower()}-public"
        self._public_id: str | None = None

    def name_of(self, mode: NetworkMode) -> str:
        """As the engine names it in the record of a container that is in it."""
        return self._public_name if mode == "public" else NO_NETWORK

    async def id_of(self, mode: NetworkMode) -> str:
        """By which the engine finds it: names of networks need not be unique."""
        if mode != "public":
            return NO_NETWORK
        if self._public_id is None:
            async with locked(self._lock):
                self._public_id = await self._find() or await self._create()
        return self._public_id

    async def _find(self) -> str | None:
        found = await self._ours()
        return found[0] if found else None

    async def _ours(self) -> list[str]:
        """The ids of all that have our labels, the one that is used first."""
        wanted = [f"{key}={value}" for key, value in self._labels.items()]
        found = await self._docker.networks.list(filters={"label": wanted})
        return [network_id for _, network_id in sorted((each["Created"], each["Id"]) for each in found)]

    async def clear(self, *, is_dry: bool) -> list[str]:
        """Remove bridges that two processes made at once, all but the one that is used; returns their names.

        One that a box is in still stays.
        """
        cleared: list[str] = []
        for network_id in (await self._ours())[1:]:
            network = await self._docker.networks.get(network_id)
            if not (await network.show())["Containers"]:
                cleared.append(f"network {network_id[:12]}")
                if not is_dry:
                    await network.delete()
        return cleared

    async def _create(self) -> str:
        config = {
            "Name": self._public_name,
            "EnableIPv6": False,
            "Options": {"com.docker.network.bridge.enable_icc": "false"},
            "Labels": self._labels,
        }
        return (await self._docker.networks.create(config)).id
