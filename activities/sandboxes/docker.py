"""The docker provider: a box is a container that joined the network namespace of its own net pod."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError

from activities.sandboxes.base import Box, BoxListing, BoxSpec, BoxTag, ImageRef, ImageRequest
from activities.sandboxes.docker_box import BoxHost, open_box
from activities.sandboxes.docker_engine import DockerEngine, close_docker, creating, open_docker, using
from activities.sandboxes.docker_images import DockerImages
from activities.sandboxes.docker_keepalive import keepalive_command, service_of
from activities.sandboxes.docker_labels import BOX, INSTALLATION, PART, label_filter, labels_of, tag_of
from activities.sandboxes.docker_pod import SMALL_LOG, PodHost, network_of, wait_until_ready
from activities.sandboxes.outside_files import can_open_below
from domain.errors import ProviderCreateFailure, ProviderUnreachable, SandboxDeath, TaskError

PIDS_LIMIT = 4096
NANO_CPUS = 1_000_000_000
MB = 1024 * 1024
NAME_TRIES = 100
NAME_RETRY_SEC = 0.05
LOG_LINES = 20


class DockerProvider:
    """Boxes on this machine's engine, of one installation; no other's containers are ever touched.

    `gateway_socket` is where the gateway listens for relays; its folder must exist. `python` is the
    interpreter that net pods run the relay with.
    """

    name = "docker"

    def __init__(
        self,
        engine: DockerEngine,
        installation_id: str,
        state_dir: Path,
        gateway_socket: Path,
        python: str = sys.executable,
    ) -> None:
        if engine.refusal:
            raise ProviderUnreachable(engine.refusal)
        self._engine = engine
        self._docker = open_docker(engine.socket)
        self._installation_id = installation_id
        self._pods = PodHost(gateway_socket, Path(python))
        self._images = DockerImages(self._docker, installation_id, state_dir / "image-locks")
        self._public_network = f"evolve-{installation_id[:8].lower()}-public"
        self._has_public_network = False
        self._is_root = can_open_below()

    async def ensure_image(self, request: ImageRequest) -> ImageRef:
        return await self._images.ensure(request)

    async def create(self, spec: BoxSpec) -> Box:
        if spec.network_mode == "allowlist":
            raise TaskError("docker boxes cannot honour network_mode allowlist", param="network_mode")
        host = await self._host()
        with creating(f"the box {spec.tag.name}"):
            pod = await self._ensure_pod(spec)
            container = await self._ensure_container(spec.tag, await self._box_config(spec, pod))
            details = await self._started(container)
            self._check_fence(spec.tag, details["Config"]["Labels"])
            return await open_box(host, container, details)

    async def attach(self, box_id: str) -> Box:
        host = await self._host()
        with using(box_id):
            container = await self._docker.containers.get(box_id)
            details = await container.show()
            if not self._is_ours(details["Config"]["Labels"]):
                raise SandboxDeath(f"there is no box {box_id} of this installation")
            return await open_box(host, container, details)

    async def list(self, installation_id: str) -> list[BoxListing]:
        with using(f"every box of {installation_id}"):
            found = await self._docker.containers.list(
                all=True, filters=label_filter({INSTALLATION: installation_id})
            )
        running = {each["Labels"][BOX] for each in found if _is_running_box(each)}
        tags = {each["Labels"][BOX]: tag_of(each["Labels"]) for each in found}
        return [BoxListing(box_id=name, tag=tag, is_running=name in running) for name, tag in tags.items()]

    async def destroy(self, box_id: str) -> None:
        """The box first, so that nothing of it runs without its firewall's owner."""
        wanted = label_filter({INSTALLATION: self._installation_id, BOX: box_id})
        with using(box_id):
            found = await self._docker.containers.list(all=True, filters=wanted)
            found.sort(key=lambda each: each["Labels"][PART])
            for container in found:
                await self._delete(container)

    async def close(self) -> None:
        await close_docker(self._docker)

    async def _host(self) -> BoxHost:
        return BoxHost(
            docker=self._docker,
            pods=self._pods,
            pod_image=await self._images.pod_image(),
            public_network=self._public_network,
            is_root=self._is_root,
        )

    async def _ensure_pod(self, spec: BoxSpec) -> str:
        """A pod whose relay listens, found or made; its container id."""
        if spec.network_mode == "public":
            await self._ensure_public_network()
        network = network_of(spec.network_mode, self._public_network)
        image = await self._images.pod_image()
        config = self._pods.config(image, network, labels_of(spec.tag, "pod"))
        pod = await self._ensure_container(spec.tag, config, suffix="-net")
        details = await self._started(pod)
        if not await wait_until_ready(details["State"]["Pid"]):
            log = "".join(await pod.log(stdout=True, stderr=True, tail=LOG_LINES))
            raise ProviderCreateFailure(f"the net pod of {spec.tag.name} did not come up: {log.strip()}")
        return pod.id

    async def _ensure_container(
        self, tag: BoxTag, config: dict[str, Any], suffix: str = ""
    ) -> DockerContainer:
        """Find by name, or make: the engine lets one name be taken once. What has ended is made anew."""
        name = f"{tag.name}{suffix}"
        for _ in range(NAME_TRIES):
            with contextlib.suppress(_Taken):
                return await self._create_container(name, config)
            found = await self._find_container(name)
            if found is not None:
                self._check_fence(tag, found["Config"]["Labels"])
                if found["State"]["Status"] in ("created", "running"):
                    return self._docker.containers.container(found["Id"])
                await self._delete(self._docker.containers.container(found["Id"]))
            await asyncio.sleep(NAME_RETRY_SEC)
        raise ProviderCreateFailure(f"the name {name} stays taken on the engine")

    async def _create_container(self, name: str, config: dict[str, Any]) -> DockerContainer:
        try:
            return await self._docker.containers.create(config, name=name)
        except DockerError as error:
            if error.status == 409:
                raise _Taken from error
            raise

    async def _find_container(self, name: str) -> Mapping[str, Any] | None:
        try:
            return await self._docker.containers.container(name).show()
        except DockerError as error:
            if error.status == 404:
                return None
            raise

    async def _started(self, container: DockerContainer) -> Mapping[str, Any]:
        await container.start()
        return await container.show()

    async def _box_config(self, spec: BoxSpec, pod: str) -> dict[str, Any]:
        image = await self._images.details(spec.image.handle)
        service = service_of(image["Config"].get("Entrypoint"))
        config: dict[str, Any] = {
            "Image": spec.image.handle,
            "Entrypoint": keepalive_command(spec.lifetime_sec, service),
            "Cmd": [],
            "Env": [f"{key}={value}" for key, value in spec.env.items()],
            "Labels": labels_of(spec.tag, "box"),
            "OpenStdin": True,
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": self._limits(spec)
            | {
                "NetworkMode": f"container:{pod}",
                "Init": True,
                "CapDrop": ["NET_RAW"],
                "PidsLimit": PIDS_LIMIT,
                "LogConfig": SMALL_LOG,
            },
        }
        if spec.workdir:
            config["WorkingDir"] = spec.workdir
        if not service:
            config["User"] = "0:0"
        return config

    def _limits(self, spec: BoxSpec) -> dict[str, Any]:
        limits: dict[str, Any] = {}
        if spec.cpus is not None:
            limits["NanoCpus"] = round(spec.cpus * NANO_CPUS)
        if spec.memory_mb is not None:
            limits["Memory"] = limits["MemorySwap"] = spec.memory_mb * MB
        if spec.storage_mb is not None and self._engine.can_limit_storage:
            limits["StorageOpt"] = {"size": f"{spec.storage_mb}m"}
        return limits

    async def _ensure_public_network(self) -> None:
        """One bridge for all public boxes: their pods' firewalls part them, and the bridge itself too."""
        if self._has_public_network:
            return
        config = {
            "Name": self._public_network,
            "CheckDuplicate": True,
            "EnableIPv6": False,
            "Options": {"com.docker.network.bridge.enable_icc": "false"},
            "Labels": {INSTALLATION: self._installation_id, PART: "network"},
        }
        try:
            await self._docker.networks.create(config)
        except DockerError as error:
            if error.status != 409:
                raise
        self._has_public_network = True

    def _check_fence(self, tag: BoxTag, labels: Mapping[str, str]) -> None:
        if not self._is_ours(labels):
            raise ProviderCreateFailure(f"the name {tag.name} belongs to another installation")
        if tag_of(labels).fence > tag.fence:
            raise ProviderCreateFailure(f"a later try has made {tag.name}")

    def _is_ours(self, labels: Mapping[str, str]) -> bool:
        return labels.get(INSTALLATION) == self._installation_id

    async def _delete(self, container: DockerContainer) -> None:
        try:
            await container.delete(force=True, v=True)
        except DockerError as error:
            if error.status != 404 and "already in progress" not in error.message:
                raise


class _Taken(Exception):
    """The name is in use on the engine."""


def _is_running_box(listing: DockerContainer) -> bool:
    return listing["Labels"][PART] == "box" and listing["State"] == "running"
