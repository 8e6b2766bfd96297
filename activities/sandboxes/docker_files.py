"""Files of a box through the engine: its archive calls, and `dd` where a part of a file is enough.

What a worker that is not root has. Each call costs some 80 ms of a core: the engine starts a process
of its own for an archive, and a command in the box for a part of a file.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import AsyncIterator

import aiohttp
from aiodocker import Docker
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError

from activities.sandboxes.docker_exec import Command, run_command

BLOCK_BYTES = 64 * 1024
CHUNK_BYTES = 256 * 1024
NO_FILE = 66
READ = f'[ -f "$1" ] || exit {NO_FILE}; exec dd if="$1" bs={BLOCK_BYTES} skip="$2" $3 2>/dev/null'
READ_TIMEOUT_SEC = 120.0
MAKE_FOLDER_TIMEOUT_SEC = 30.0


class EngineFiles:
    """Raises `FileNotFoundError` for an absent path, aiodocker's errors for what the engine refuses."""

    def __init__(self, docker: Docker, container: DockerContainer) -> None:
        self._docker = docker
        self._container = container

    async def read(self, path: str, offset: int, limit: int | None) -> bytes:
        skip, before = divmod(offset, BLOCK_BYTES)
        count = "" if limit is None else f"count={-(-(before + limit) // BLOCK_BYTES)}"
        argv = ["/bin/sh", "-c", READ, "read", path, str(skip), count]
        result = await run_command(self._container, Command(argv, user="0"), READ_TIMEOUT_SEC)
        if result.exit_code == NO_FILE:
            raise FileNotFoundError(path)
        return result.stdout[before : None if limit is None else before + limit]

    async def write(self, path: str, data: bytes, mode: int, owner: tuple[int, int]) -> None:
        member = tarfile.TarInfo(posixpath.basename(path))
        member.size, member.mode = len(data), mode
        member.uid, member.gid = owner
        tar = io.BytesIO()
        with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as target:
            target.addfile(member, io.BytesIO(data))
        await self.put_tar(posixpath.dirname(path), tar.getvalue())

    async def put_tar(self, path: str, tar: bytes) -> None:
        if not await self._put(path, tar):
            argv = ["/bin/mkdir", "-p", path]
            await run_command(self._container, Command(argv, user="0"), MAKE_FOLDER_TIMEOUT_SEC)
            if not await self._put(path, tar):
                raise FileNotFoundError(path)

    async def get_tar(self, path: str) -> AsyncIterator[bytes]:
        place = f"{path.rstrip('/')}/." if await self.is_folder(path) else path
        async with self._docker.session.get(self._url(), params={"path": place}) as response:
            if response.status == 404:
                await self._container.show()  # raises when it is the container that is absent
                raise FileNotFoundError(path)
            await _raise_refusal(response)
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                yield chunk

    async def is_folder(self, path: str) -> bool:
        return await self.exists(f"{path}/.")

    async def exists(self, path: str) -> bool:
        async with self._docker.session.head(self._url(), params={"path": path}) as response:
            return response.status == 200

    async def _put(self, path: str, tar: bytes) -> bool:
        async with self._docker.session.put(self._url(), params={"path": path}, data=tar) as response:
            if response.status == 404:
                await self._container.show()  # raises when it is the container that is absent
                return False
            await _raise_refusal(response)
            return True

    def _url(self) -> str:
        return f"http://localhost/{self._docker.api_version}/containers/{self._container.id}/archive"


async def _raise_refusal(response: aiohttp.ClientResponse) -> None:
    if response.status >= 400:
        raise DockerError(response.status, (await response.read()).decode(errors="replace"))
