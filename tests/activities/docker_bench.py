"""Providers, images and looks at the engine for the docker tests."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

from activities.sandboxes.base import ImageRef, ImageRequest
from activities.sandboxes.docker import DockerProvider
from activities.sandboxes.docker_engine import connect, docker_engine
from activities.sandboxes.docker_labels import INSTALLATION, label_filter
from activities.sandboxes.docker_pool import pod_of

BUILD_TIMEOUT_SEC = 60.0


async def open_provider(installation_id: str, folder: Path) -> DockerProvider:
    """A provider of a new installation whose gateway's socket is `folder`/gateway/gateway.sock."""
    (folder / "gateway").mkdir(exist_ok=True)
    engine = await docker_engine()
    assert engine.refusal is None, f"{engine.refusal}: run `make setup-docker`"
    return DockerProvider(engine, installation_id, folder / "state", folder / "gateway" / "gateway.sock")


async def close_provider(provider: DockerProvider) -> None:
    """Close it, and take away what an installation keeps on an engine: its images and its network."""
    await provider.close()
    engine = await docker_engine()
    wanted = {"label": [f"{INSTALLATION}={provider.installation_id}"]}
    async with connect(engine.socket) as docker:
        for network in await docker.networks.list(filters=wanted):
            await (await docker.networks.get(network["Id"])).delete()
        for image in await docker.images.list(filters=wanted):
            await docker.images.delete(image["Id"], force=True)


async def build_image(provider: DockerProvider, folder: Path, dockerfile: str) -> ImageRef:
    context = folder / "context"
    context.mkdir(exist_ok=True)
    (context / "Dockerfile").write_text(dockerfile)
    return await provider.ensure_image(image_request(provider, context))


def image_request(provider: DockerProvider, context: Path, **other: Any) -> ImageRequest:
    digest = hashlib.sha256()
    for path in sorted(context.rglob("*")):
        digest.update(f"{path.relative_to(context)}\0".encode())
        digest.update(path.read_bytes() if path.is_file() else b"")
    fields: dict[str, Any] = {
        "installation_id": provider.installation_id,
        "context_dir": context,
        "docker_image": None,
        "context_digest": f"sha256:{digest.hexdigest()}",
        "build_timeout_sec": BUILD_TIMEOUT_SEC,
    }
    return ImageRequest(**(fields | other))


async def engine_containers(installation_id: str) -> list[dict[str, Any]]:
    """Every container of an installation as the engine lists it, pods too."""
    engine = await docker_engine()
    async with connect(engine.socket) as docker:
        filters = label_filter({INSTALLATION: installation_id})
        return [dict(each._container) for each in await docker.containers.list(all=True, filters=filters)]


async def engine_details(container: str) -> dict[str, Any]:
    """The engine's record of a container by name or id."""
    engine = await docker_engine()
    async with connect(engine.socket) as docker:
        return await docker.containers.container(container).show()


async def pod_details(box_id: str) -> dict[str, Any]:
    """The engine's record of the pod whose network the box has joined."""
    return await engine_details(pod_of(await engine_details(box_id)) or "")


def children_of(pid: int) -> list[int]:
    """Processes of this machine whose parent is `pid`."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(") ")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found
