"""One running box of the docker provider."""

from __future__ import annotations

import asyncio
import inspect
import io
import json
import re
import tarfile
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiodocker import Docker
from aiodocker.containers import DockerContainer

from activities.sandboxes import docker_sweeper
from activities.sandboxes.base import NetworkMode, ProcessInfo, ProcessKey, RunResult
from activities.sandboxes.docker_engine import using
from activities.sandboxes.docker_exec import Command, run_command
from activities.sandboxes.docker_files import EngineFiles
from activities.sandboxes.docker_keepalive import service_exit_code
from activities.sandboxes.docker_labels import labels_of, tag_of
from activities.sandboxes.docker_network import Networks
from activities.sandboxes.docker_outside import OutsideFiles
from activities.sandboxes.docker_pod import PodHost
from activities.sandboxes.docker_pool import pod_of
from activities.sandboxes.docker_processes import container_processes
from activities.sandboxes.process_poll import FileSlice, FileState
from domain.errors import SandboxDeath, TaskError

ROOT = "0"
DEFAULT_WORKDIR = "/app"
SWEEP_TIMEOUT_SEC = 60.0


@dataclass(frozen=True)
class BoxHost:
    """What every box of one provider shares."""

    docker: Docker
    pods: PodHost
    networks: Networks
    pod_image: str
    is_root: bool


class DockerBox:
    """`details` is the engine's record of the running container."""

    def __init__(
        self, host: BoxHost, container: DockerContainer, details: Mapping[str, Any], workdir: str
    ) -> None:
        self._host = host
        self._container = container
        self._pod_id = pod_of(details) or ""
        self._init_pid: int = details["State"]["Pid"]
        self._tag = tag_of(details["Config"]["Labels"])
        self._workdir = workdir
        self._files: EngineFiles | OutsideFiles = EngineFiles(host.docker, container)

    @property
    def box_id(self) -> str:
        return self._tag.name

    @property
    def workdir(self) -> str:
        return self._workdir

    async def run(
        self,
        argv: Sequence[str],
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_sec: float = 30.0,
    ) -> RunResult:
        command = Command(argv, user or ROOT, cwd or self._workdir, env, stdin)
        with using(self.box_id):
            return await run_command(self._container, command, timeout_sec)

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        with using(self.box_id):
            return await self._files.read(path, offset, limit)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644, user: str | None = None) -> None:
        with using(self.box_id):
            await self._files.write(path, data, mode, await self._owner(user or ROOT))

    async def put_tar(self, path: str, tar: bytes) -> None:
        with using(self.box_id):
            await self._files.put_tar(path, await asyncio.to_thread(owned_by_root, tar))

    async def get_tar(self, path: str) -> AsyncIterator[bytes]:
        with using(self.box_id):
            async for chunk in self._files.get_tar(path):
                yield chunk

    async def set_network(self, mode: NetworkMode) -> None:
        wanted = self._host.networks.name_of(mode)
        with using(self.box_id):
            pod = await self._host.docker.containers.get(self._pod_id)
            attached = set(pod["NetworkSettings"]["Networks"])
            if attached == {wanted}:
                return
            for name in attached:
                network = await self._host.docker.networks.get(name)
                await network.disconnect({"Container": pod.id, "Force": True})
            network = await self._host.docker.networks.get(await self._host.networks.id_of(mode))
            await network.connect({"Container": pod.id})

    async def processes(self) -> list[ProcessInfo]:
        try:
            return await asyncio.to_thread(container_processes, self._init_pid)
        except ProcessLookupError as error:
            raise SandboxDeath(f"the box {self.box_id} is gone") from error

    async def service_exit_code(self) -> int | None:
        """How the service that the image's ENTRYPOINT starts has ended; None while it runs or is none."""
        return service_exit_code(await self.processes())

    async def sweep(self, keep: Collection[ProcessKey]) -> int:
        config = {
            "Image": self._host.pod_image,
            "Entrypoint": self._host.pods.python_command(
                inspect.getsource(docker_sweeper), json.dumps(list(keep))
            ),
            "Labels": labels_of(self._tag, "sweeper"),
            "HostConfig": {
                **self._host.pods.program_config(),
                "NetworkMode": "none",
                "PidMode": f"container:{self._container.id}",
                # SYS_PTRACE, so that the box's root, who lacks it, may not trace the sweeper.
                "CapAdd": ["KILL", "SYS_PTRACE"],
            },
        }
        with using(self.box_id):
            sweeper = await self._host.docker.containers.create(config)
            try:
                await sweeper.start()
                async with asyncio.timeout(SWEEP_TIMEOUT_SEC):
                    await sweeper.wait()
                return int("".join(await sweeper.log(stdout=True)))
            finally:
                await sweeper.delete(force=True)

    async def _owner(self, user: str) -> tuple[int, int]:
        """A user's uid and group as the box's own passwd says; numbers stand for themselves."""
        if re.fullmatch(r"\d+(:\d+)?", user):
            uid, _, gid = user.partition(":")
            return int(uid), int(gid or uid)
        for line in (await self.read("/etc/passwd")).decode(errors="replace").splitlines():
            fields = line.split(":")
            if fields[0] == user and len(fields) > 3:
                return int(fields[2]), int(fields[3])
        raise TaskError(f"there is no user {user} in the task's image", param="user")


class OutsideDockerBox(DockerBox):
    """A box of a worker that is root: its files are reached without the engine."""

    def __init__(
        self, host: BoxHost, container: DockerContainer, details: Mapping[str, Any], workdir: str
    ) -> None:
        super().__init__(host, container, details, workdir)
        self._files = self._outside = OutsideFiles(self.box_id, self._init_pid)

    async def read_files(self, slices: Sequence[FileSlice]) -> list[FileState | None]:
        """See `process_poll.ReadsFilesFromOutside`."""
        return await self._outside.read_files(slices)


async def open_box(host: BoxHost, container: DockerContainer, details: Mapping[str, Any]) -> DockerBox:
    """A box of a running container; raises `SandboxDeath` when it does not run."""
    if not details["State"]["Running"]:
        raise SandboxDeath(f"the box {details['Name'].lstrip('/')} is not running")
    workdir = details["Config"]["WorkingDir"]
    if not workdir:
        has_default = await EngineFiles(host.docker, container).is_folder(DEFAULT_WORKDIR)
        workdir = DEFAULT_WORKDIR if has_default else "/"
    kind = OutsideDockerBox if host.is_root else DockerBox
    return kind(host, container, details, workdir)


def owned_by_root(tar: bytes) -> bytes:
    """The same tar with every owner root; unchanged bytes when it is so already."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as source:
        members = source.getmembers()
        if all(member.uid == 0 and member.gid == 0 for member in members):
            return tar
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as copy:
            for member in members:
                member.uid = member.gid = 0
                headers = member.pax_headers.items()
                member.pax_headers = {key: value for key, value in headers if key not in ("uid", "gid")}
                copy.addfile(member, source.extractfile(member) if member.isreg() else None)
    return target.getvalue()
