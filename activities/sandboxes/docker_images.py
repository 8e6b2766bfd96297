"""Images on the engine: one per environment, named by its content, built once."""

from __future__ import annotations

import asyncio
import io
import json
import re
import tarfile
import tempfile
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import aiohttp
from aiodocker import Docker
from aiodocker.exceptions import DockerError

from activities.sandboxes.base import ImageListing, ImageRef, ImageRequest
from activities.sandboxes.docker_context import DOCKERFILE, write_context
from activities.sandboxes.docker_engine import creating, using
from activities.sandboxes.docker_keepalive import service_of
from activities.sandboxes.docker_labels import INSTALLATION, PART
from activities.sandboxes.file_lock import locked
from domain.errors import BaseImageUnavailable, ImageBuildFailed

CONTEXT_DIGEST = "evolve.context_digest"
MAX_LINE_BYTES = 4 * 1024 * 1024
EXCERPT_LINES = 100
EXCERPT_CHARS = 16_000
SPOOL_BYTES = 8 * 1024 * 1024
FROM_STEP = re.compile(r"Step \d+/\d+ : FROM (?P<image>\S+)", re.IGNORECASE)
STEP = re.compile(r"Step \d+/\d+ : ")
POD_DOCKERFILE = b"FROM scratch\nLABEL evolve.part=image\n"


class DockerImages:
    """Finds or makes images for one installation; its locks lie in `lock_dir`."""

    def __init__(self, docker: Docker, installation_id: str, lock_dir: Path) -> None:
        self._docker = docker
        self._installation_id = installation_id
        self._repository = f"evolve/{installation_id[:8].lower()}"
        self._lock_dir = lock_dir
        self._pod_image: str | None = None

    async def ensure(self, request: ImageRequest) -> ImageRef:
        """Find, pull or build. Raises `ImageBuildFailed` with the end of what the engine said."""
        if request.docker_image is not None:
            return await self._pinned(request.docker_image, request.build_timeout_sec)
        digest = request.context_digest
        tag = f"{self._repository}:{digest.removeprefix('sha256:')[:16]}"
        async with self._single_flight(tag):
            found = await self._inspect(tag)
            if found is None or (found["Config"]["Labels"] or {}).get(CONTEXT_DIGEST) != digest:
                await self._build(request, tag)
                found = await self._inspect(tag)
        if found is None:
            raise ImageBuildFailed(f"the image {tag} was removed while it was being built")
        return _ref(found)

    async def pod_image(self) -> str:
        """An image without any file: everything that a pod runs is mounted from this machine."""
        if self._pod_image is None:
            tag = f"{self._repository}:pod"
            context = io.BytesIO(_tar_of(DOCKERFILE, POD_DOCKERFILE))
            async with self._single_flight(tag):
                if await self._inspect(tag) is None:
                    with creating("the net pods' empty image"):
                        await self._docker.images.build(
                            fileobj=context, encoding="identity", tag=tag, labels=self._labels()
                        )
            self._pod_image = tag
        return self._pod_image

    async def details(self, handle: str) -> dict[str, Any]:
        """The engine's own record of an image; raises `ProviderCreateFailure` when it is not there."""
        with creating(f"the image {handle}"):
            return await self._docker.images.inspect(handle)

    async def built(self) -> list[ImageListing]:
        """What this installation built, at the size that only its own layers have."""
        with using("the images"):
            usage = await self._docker._query_json("system/df")
        return [
            ImageListing(
                name=image["Id"],
                id=image["Id"],
                size_bytes=max(0, image["Size"] - max(0, image["SharedSize"])),
                made_at=datetime.fromtimestamp(image["Created"], UTC),
            )
            for image in usage["Images"] or ()
            if self._is_built_here(image["Labels"] or {})
        ]

    def _is_built_here(self, labels: Mapping[str, str]) -> bool:
        return labels.get(INSTALLATION) == self._installation_id and CONTEXT_DIGEST in labels

    async def remove(self, name: str) -> bool:
        """False when a container still needs it."""
        try:
            found = await self._docker.images.inspect(name)
            if not self._is_built_here(found["Config"]["Labels"] or {}):
                return False
            # By its tags: an image that has several cannot be removed by its id.
            for each in found["RepoTags"] or (name,):
                await self._docker.images.delete(each)
        except DockerError as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        return True

    async def _pinned(self, image: str, timeout_sec: float) -> ImageRef:
        if not await base_image_available(self._docker, image, timeout_sec):
            raise ImageBuildFailed(f"docker_image {image} is not on this engine and cannot be pulled")
        return _ref(await self.details(image))

    async def _inspect(self, name: str) -> dict[str, Any] | None:
        try:
            with creating(f"the image {name}"):
                return await self._docker.images.inspect(name)
        except Exception as error:
            if isinstance(error.__cause__, DockerError) and error.__cause__.status == 404:
                return None
            raise

    async def _build(self, request: ImageRequest, tag: str) -> None:
        if not (request.context_dir / DOCKERFILE).is_file():
            raise ImageBuildFailed(f"environment/{DOCKERFILE} is missing")
        log: deque[str] = deque(maxlen=EXCERPT_LINES)
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as context:
            await asyncio.to_thread(write_context, request.context_dir, context)
            context.seek(0)
            try:
                async with asyncio.timeout(request.build_timeout_sec):
                    await self._stream_build(context, tag, request.context_digest, log)
            except TimeoutError as error:
                message = f"the image did not build within {request.build_timeout_sec:g} s"
                raise ImageBuildFailed(message, excerpt=_excerpt(log)) from error
            except DockerError as error:
                raise _build_failure(log, error.message) from error

    async def _stream_build(self, context: IO[bytes], tag: str, digest: str, log: deque[str]) -> None:
        """Raises `DockerError`. To leave it early closes the connection, which ends the build."""
        labels = {**self._labels(), CONTEXT_DIGEST: digest}
        async with self._docker.session.post(
            f"http://localhost/{self._docker.api_version}/build",
            params={"t": tag, "rm": "1", "forcerm": "1", "labels": json.dumps(labels)},
            data=context,
            headers={"Content-Type": "application/x-tar"},
            timeout=aiohttp.ClientTimeout(),
            read_bufsize=MAX_LINE_BYTES,
        ) as response:
            if response.status != 200:
                raise DockerError(response.status, json.loads(await response.read())["message"])
            async for line in response.content:
                told = json.loads(line)
                if "error" in told:
                    raise DockerError(0, told["error"])
                log.extend(told.get("stream", "").splitlines())

    def _labels(self) -> dict[str, str]:
        return {INSTALLATION: self._installation_id, PART: "image"}

    def _single_flight(self, tag: str) -> AbstractAsyncContextManager[None]:
        """One builder of `tag` at a time among all processes of this installation."""
        return locked(self._lock_dir / tag.replace("/", "_"))


async def base_image_available(docker: Docker, image: str, timeout_sec: float = 20.0) -> bool:
    """Whether the engine has `image` or can pull it now; pulls it then."""
    try:
        await docker.images.inspect(image)
        return True
    except DockerError as error:
        if error.status != 404:
            return False
    try:
        async with asyncio.timeout(timeout_sec):
            await docker.images.pull(image)
    except (DockerError, aiohttp.ClientError, TimeoutError):
        return False
    return True


def _tar_of(name: str, content: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return target.getvalue()


def _build_failure(log: deque[str], error: str) -> ImageBuildFailed:
    steps = [line for line in log if STEP.match(line)]
    base = FROM_STEP.match(steps[-1]) if steps else None
    if base:
        message = f"the base image {base['image']} is not on this engine and cannot be pulled: {error}"
        return BaseImageUnavailable(message, excerpt=_excerpt(log))
    return ImageBuildFailed(f"the image did not build: {error}", excerpt=_excerpt(log))


def _excerpt(log: deque[str]) -> str:
    return "\n".join(log)[-EXCERPT_CHARS:]


def _ref(details: Mapping[str, Any]) -> ImageRef:
    config = details["Config"]
    return ImageRef(
        id=details["Id"],
        handle=details["Id"],
        user=config.get("User") or None,
        starts_service=bool(service_of(config.get("Entrypoint"))),
    )
