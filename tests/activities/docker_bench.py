"""Providers, images and looks at the engine for the docker tests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from activities.sandboxes.base import ImageRef, ImageRequest
from activities.sandboxes.docker import DockerProvider
from activities.sandboxes.docker_engine import connect, docker_engine

BUILD_TIMEOUT_SEC = 60.0


async def open_provider(installation_id: str, folder: Path) -> DockerProvider:
    """A provider of a new installation whose gateway's socket is `folder`/gateway/gateway.sock."""
    (folder / "gateway").mkdir(exist_ok=True)
    engine = await docker_engine()
    assert engine.refusal is None, f"{engine.refusal}: run `make setup-docker`"
    return DockerProvider(engine, installation_id, folder / "state", folder / "gateway" / "gateway.sock")


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
        filters = f'{{"label":["evolve.installation={installation_id}"]}}'
        return [dict(each._container) for each in await docker.containers.list(all=True, filters=filters)]
