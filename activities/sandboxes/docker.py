"""The docker provider: a box is a container that joined the network namespace of a net pod."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError

from activities.sandboxes.base import (
    Box,
    BoxListing,
    BoxSpec,
    BoxTag,
    ImageListing,
    ImageRef,
    ImageRequest,
)
from activities.sandboxes.docker_box import BoxHost, open_box
from activities.sandboxes.docker_box_config import box_config, remove_own_files, write_own_files
from activities.sandboxes.docker_engine import DockerEngine, close_docker, creating, open_docker, using
from activities.sandboxes.docker_files import EngineFiles
from activities.sandboxes.docker_images import DockerImages
from activities.sandboxes.docker_keepalive import comes_up
from activities.sandboxes.docker_labels import BOX, INSTALLATION, PART, label_filter, tag_of
from activities.sandboxes.docker_pod import PodHost
from activities.sandboxes.docker_pool import PodPool, delete, pod_of
from activities.sandboxes.outside_files import can_open_below
from domain.errors import DeleteRefused, ProviderCreateFailure, ProviderUnreachable, SandboxDeath

NAME_TRIES = 100
NAME_RETRY_SEC = 0.05
START_TRIES = 5


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
        self.installation_id = installation_id
        self.state_dir = state_dir
        self.gateway_socket = gateway_socket
        self._state_dir = state_dir / "docker"
        self._pods = PodHost(installation_id, gateway_socket, Path(python))
        self._images = DockerImages(self._docker, installation_id, self._state_dir / "image-locks")
        self._pool = PodPool(self._docker, self._pods, self._images, self._state_dir)
        self._is_root = can_open_below()
        self._is_ready = False

    async def ensure_image(self, request: ImageRequest) -> ImageRef:
        return await self._images.ensure(request)

    async def create(self, spec: BoxSpec) -> Box:
        if spec.network_mode == "allowlist":
            raise ProviderCreateFailure("docker boxes have no network mode 'allowlist'")
        host = await self._host()
        with creating(f"the box {spec.tag.name}"):
            for _ in range(NAME_TRIES):
                found = await self._find(spec.tag.name)
                details = await self._adopt(spec.tag, found) if found else await self._make(spec)
                if details is not None:
                    return await open_box(host, self._docker.containers.container(details["Id"]), details)
                await asyncio.sleep(NAME_RETRY_SEC)
        raise ProviderCreateFailure(f"the name {spec.tag.name} stays taken on the engine")

    async def attach(self, box_id: str) -> Box:
        host = await self._host()
        with using(box_id):
            details = await self._find(box_id)
            if details is None or not self._is_ours(details["Config"]["Labels"]):
                raise SandboxDeath(f"there is no box {box_id} of this installation")
            return await open_box(host, self._docker.containers.container(details["Id"]), details)

    @property
    def disks(self) -> tuple[Path, ...]:
        return (self._state_dir, self._engine.data_root)

    async def list(self, installation_id: str) -> list[BoxListing]:
        found = await self._containers(installation_id)
        running = {each["Labels"][BOX] for each in found if _is_running_box(each)}
        parts = {each["Labels"][BOX]: each for each in found if BOX in each["Labels"]}
        return [
            BoxListing(
                box_id=name,
                tag=tag_of(part["Labels"]),
                is_running=name in running,
                made_at=datetime.fromtimestamp(part["Created"], UTC),
            )
            for name, part in parts.items()
        ]

    async def _containers(self, installation_id: str) -> list[DockerContainer]:
        with using(f"every box of {installation_id}"):
            return await self._docker.containers.list(
                all=True, filters=label_filter({INSTALLATION: installation_id})
            )

    async def clear_litter(self, *, is_dry: bool) -> list[str]:
        """Pods that no box will use any more, and networks that another has replaced."""
        found = await self._containers(self.installation_id)
        used = {pod for each in found if (pod := pod_of(each))}
        pods = [each for each in found if each["Labels"][PART] == "pod"]
        with using("its pods and networks"):
            return [
                *await self._pool.reclaim(pods, used, is_dry=is_dry),
                *await self._pool.networks.clear(is_dry=is_dry),
            ]

    async def images(self) -> list[ImageListing]:
        return await self._images.built()

    async def remove_image(self, name: str) -> bool:
        with using(f"the image {name}"):
            return await self._images.remove(name)

    async def destroy(self, box_id: str) -> None:
        """Kill the box and what helps it; its pod is free when nothing of it runs any more."""
        with using(box_id), _may_be_refused(box_id):
            found = await self._parts(box_id)
            await asyncio.gather(*(delete(each) for each in found))
            for pod_id in filter(None, map(pod_of, found)):
                await self._pool.release(pod_id, box_id)
        remove_own_files(self._own_files(box_id))

    async def stop(self, box_id: str) -> None:
        with using(box_id):
            await asyncio.gather(*(_kill(each) for each in await self._parts(box_id)))

    async def _parts(self, box_id: str) -> list[DockerContainer]:
        wanted = label_filter({INSTALLATION: self.installation_id, BOX: box_id})
        return await self._docker.containers.list(all=True, filters=wanted)

    async def close(self) -> None:
        await self._pool.close()
        await close_docker(self._docker)

    async def _host(self) -> BoxHost:
        if not self._is_ready:
            await self.clear_litter(is_dry=False)
            self._is_ready = True
        return BoxHost(
            docker=self._docker,
            pods=self._pods,
            networks=self._pool.networks,
            pod_image=await self._images.pod_image(),
            is_root=self._is_root,
        )

    async def _find(self, name: str) -> Mapping[str, Any] | None:
        try:
            return await self._docker.containers.container(name).show()
        except DockerError as error:
            if error.status == 404:
                return None
            raise

    async def _adopt(self, tag: BoxTag, found: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """What an earlier try made, started if it is not; None when it was over and is removed."""
        self._check_fence(tag, found["Config"]["Labels"])
        if found["State"]["Status"] in ("created", "running"):
            try:
                pod = await self._docker.containers.container(pod_of(found) or "").show()
                if pod["State"]["Running"]:
                    return await self._start(self._docker.containers.container(found["Id"]))
            except DockerError as error:
                if error.status >= 500:
                    raise
        await self.destroy(tag.name)
        return None

    async def _make(self, spec: BoxSpec) -> Mapping[str, Any] | None:
        """A new box; None when the name was taken meanwhile: the engine gives one name once.

        A loaded engine (20.10, kernel 6.18) was seen to start containers into an empty root, up to
        one in four for some seconds: such a box ends before anything ran in it, and is made anew.
        """
        told = ""
        for _ in range(START_TRIES):
            try:
                return await self._make_once(spec)
            except _EndedAtOnce as ended:
                told = str(ended)
        raise ProviderCreateFailure(f"the box {spec.tag.name} ended as soon as it began: {told}")

    async def _make_once(self, spec: BoxSpec) -> Mapping[str, Any] | None:
        name = spec.tag.name
        own_files = self._own_files(name)
        write_own_files(own_files)
        image = await self._images.details(spec.image.handle)
        pod_id = await self._pool.take(spec.network_mode, name)
        config = box_config(spec, pod_id, image, own_files, can_limit_storage=self._engine.can_limit_storage)
        try:
            container = await self._docker.containers.create(config, name=name)
        except DockerError as error:
            await self._pool.release(pod_id, name)
            if error.status == 409:
                return None
            raise
        try:
            if not await EngineFiles(self._docker, container).exists("/bin/sh"):
                raise ProviderCreateFailure(f"the image of {name} has no /bin/sh, which a box needs")
            details = await self._start(container)
            if not await comes_up(details["State"]["Pid"]):
                raise _EndedAtOnce("".join(await container.log(stdout=True, stderr=True)).strip())
            return details
        except (DockerError, ProviderCreateFailure, TimeoutError, _EndedAtOnce):
            await delete(container)
            await self._pool.release(pod_id, name)
            raise

    async def _start(self, container: DockerContainer) -> Mapping[str, Any]:
        await container.start()
        return await container.show()

    def _check_fence(self, tag: BoxTag, labels: Mapping[str, str]) -> None:
        if not self._is_ours(labels):
            raise ProviderCreateFailure(f"the name {tag.name} belongs to another installation")
        if tag_of(labels).fence > tag.fence:
            raise ProviderCreateFailure(f"a later try has made {tag.name}")

    def _is_ours(self, labels: Mapping[str, str]) -> bool:
        return labels.get(INSTALLATION) == self.installation_id

    def _own_files(self, box_id: str) -> Path:
        return self._state_dir / "boxes" / box_id


class _EndedAtOnce(Exception):
    """A container ended before its first process was there; the message is what it printed."""


@contextlib.contextmanager
def _may_be_refused(box_id: str) -> Iterator[None]:
    """An engine behind an authorization plugin may forbid us to delete."""
    try:
        yield
    except DockerError as error:
        if error.status == 403:
            raise DeleteRefused(f"the engine does not let {box_id} be deleted: {error.message}") from error
        raise


async def _kill(container: DockerContainer) -> None:
    try:
        await container.kill()
    except DockerError as error:
        if error.status not in (404, 409):
            raise


def _is_running_box(listing: DockerContainer) -> bool:
    return listing["Labels"][PART] == "box" and listing["State"] == "running"
