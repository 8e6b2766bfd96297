"""Net pods, used again one after the other: making one costs more of a core than the box that joins it.

A pod belongs to the worker process that made it, not to a trial: it carries the installation and its
pool, and the box that uses it names it. It serves one box at a time and is handed out again only while
its namespace is as it was at first: the same sockets (so nobody's port is still in TIME_WAIT) and the
same interfaces. A box cannot change anything else there, and its hosts file and resolver are its own.
What is not used again soon is removed; what a dead process left, by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import time
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiodocker import Docker
from aiodocker.containers import DockerContainer
from aiodocker.exceptions import DockerError

from activities.sandboxes.base import NetworkMode
from activities.sandboxes.docker_images import DockerImages
from activities.sandboxes.docker_labels import INSTALLATION, POOL
from activities.sandboxes.docker_network import Networks
from activities.sandboxes.docker_pod import PodHost, wait_until_ready
from domain.errors import ProviderCreateFailure

IDLE_SEC = 20.0
# How long a pod may wait for its box to be made, before its creation is taken for given up.
CLAIM_SEC = 300.0
LOG_LINES = 20
SOCKET_TABLES = ("tcp", "tcp6", "udp", "udp6", "raw", "raw6")


@dataclass(frozen=True)
class Pod:
    """A pod of this process; `state` is its namespace's at first."""

    id: str
    pid: int
    mode: NetworkMode
    state: frozenset[tuple[str, ...]]

    def is_as_at_first(self) -> bool:
        """False also when the pod is over."""
        with contextlib.suppress(OSError):
            return namespace_state(self.pid) == self.state
        return False


@dataclass(frozen=True)
class _Claim:
    pod: Pod
    box_id: str
    since: float


class PodPool:
    """The pods of one process. The lock on its file says to others that the process lives."""

    def __init__(self, docker: Docker, host: PodHost, images: DockerImages, state_dir: Path) -> None:
        self.networks = Networks(docker, host.installation_id, state_dir)
        self._docker = docker
        self._host = host
        self._images = images
        self._id = uuid.uuid4().hex[:12]
        self._folder = state_dir / "pools"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self._folder / self._id).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._making: set[str] = set()  # by name: an engine that dies over a create says no id
        self._idle: dict[str, Pod] = {}
        self._claims: dict[str, _Claim] = {}
        self._expiries: dict[str, asyncio.Task[None]] = {}

    async def take(self, mode: NetworkMode, box_id: str) -> str:
        """A pod for one box, its firewall written and its relay listening; its container id."""
        pod = self._take_idle(mode) or await self._make(mode)
        self._claims[pod.id] = _Claim(pod, box_id, time.monotonic())
        return pod.id

    def _take_idle(self, mode: NetworkMode) -> Pod | None:
        for pod in reversed(self._idle.values()):
            if pod.mode == mode and pod.is_as_at_first():
                self._expiries.pop(pod.id).cancel()
                return self._idle.pop(pod.id)
        return None

    async def _make(self, mode: NetworkMode) -> Pod:
        """What is left of a pod that could not be made, or not be removed then, is for the next reclaim."""
        name = f"evolve-pod-{self._id}-{uuid.uuid4().hex[:8]}"
        self._making.add(name)
        try:
            return await self._make_named(name, mode)
        finally:
            self._making.discard(name)

    async def _make_named(self, name: str, mode: NetworkMode) -> Pod:
        network = await self.networks.id_of(mode)
        config = self._host.config(await self._images.pod_image(), network, self._id)
        container = await self._docker.containers.create(config, name=name)
        try:
            await container.start()
            pid: int = (await container.show())["State"]["Pid"]
            if await wait_until_ready(pid):
                return Pod(container.id, pid, mode, namespace_state(pid))
            log = "".join(await container.log(stdout=True, stderr=True, tail=LOG_LINES)).strip()
        except (DockerError, OSError):
            await delete(container)
            raise
        await delete(container)
        raise ProviderCreateFailure(f"the net pod did not come up: {log}")

    async def release(self, pod_id: str, box_id: str) -> None:
        """The box is gone. Its pod is kept for another one; that of a dead process is removed."""
        claim = self._claims.get(pod_id)
        if claim is not None and claim.box_id == box_id:
            del self._claims[pod_id]
            self._idle[pod_id] = claim.pod
            self._expiries[pod_id] = asyncio.create_task(self._expire(pod_id))
        elif claim is None and pod_id not in self._idle:
            await self._remove_if_orphan(pod_id)

    async def _expire(self, pod_id: str) -> None:
        await asyncio.sleep(IDLE_SEC)
        pod = self._idle.pop(pod_id)
        del self._expiries[pod_id]
        try:
            await delete(self._docker.containers.container(pod_id))
        except DockerError:
            self._claims[pod_id] = _Claim(pod, "", since=-CLAIM_SEC)  # for the next reclaim

    async def _remove_if_orphan(self, pod_id: str) -> None:
        try:
            details = await self._docker.containers.container(pod_id).show()
        except DockerError as error:
            if error.status == 404:
                return
            raise
        if self._is_left(pod_id, [details["Name"]], details["Config"]["Labels"]):
            await self._remove(pod_id)

    async def reclaim(
        self, pods: Iterable[DockerContainer], used: Collection[str], *, is_dry: bool
    ) -> list[str]:
        """Remove what nobody will use: pods of dead processes, and of boxes whose creation was given up.

        `pods` are all of the installation, `used` the ids of those that a container has joined. Returns
        their names.
        """
        unused = [pod for pod in pods if pod.id not in used]
        left = [pod for pod in unused if self._is_left(pod.id, pod["Names"] or [], pod["Labels"])]
        if not is_dry:
            for pod in left:
                await self._remove(pod.id)
        return [f"pod {pod.id[:12]}" for pod in left]

    def _is_left(self, pod_id: str, names: Collection[str], labels: Mapping[str, str]) -> bool:
        if labels.get(INSTALLATION) != self._host.installation_id:
            return False
        if labels.get(POOL) != self._id:
            return not self._lives(labels.get(POOL, ""))
        if pod_id in self._idle or any(name.lstrip("/") in self._making for name in names):
            return False
        claim = self._claims.get(pod_id)
        return claim is None or time.monotonic() - claim.since >= CLAIM_SEC

    async def _remove(self, pod_id: str) -> None:
        self._claims.pop(pod_id, None)
        await delete(self._docker.containers.container(pod_id))

    def _lives(self, pool_id: str) -> bool:
        """Whether the process of a pool holds the lock of its file."""
        try:
            with (self._folder / pool_id).open("r") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        (self._folder / pool_id).unlink(missing_ok=True)
        return False

    async def close(self) -> None:
        """Remove what is idle; pods of boxes that go on stay."""
        for task in self._expiries.values():
            task.cancel()
        idle, self._idle, self._expiries = list(self._idle), {}, {}
        with contextlib.suppress(DockerError):  # the next process removes them
            await asyncio.gather(*(delete(self._docker.containers.container(each)) for each in idle))
        (self._folder / self._id).unlink(missing_ok=True)
        self._lock.close()


def namespace_state(pid: int) -> frozenset[tuple[str, ...]]:
    """The sockets and interfaces of a network namespace, from this machine's /proc; raises `OSError`."""
    net = Path(f"/proc/{pid}/net")
    state = {("interface", line.split(":")[0].strip()) for line in _rows(net / "dev")}
    for table in SOCKET_TABLES:
        state |= {(table, *row.split()[1:4]) for row in _rows(net / table)}
    return frozenset(state)


def _rows(path: Path) -> list[str]:
    return path.read_text().splitlines()[1:] if path.exists() else []


async def delete(container: DockerContainer) -> None:
    """Kill and remove; absent is done."""
    try:
        await container.delete(force=True, v=True)
    except DockerError as error:
        if error.status != 404 and "already in progress" not in error.message:
            raise


def pod_of(details: Mapping[str, Any] | DockerContainer) -> str | None:
    """The container id of the pod that a container has joined, from the engine's record of it."""
    kind, _, pod_id = details["HostConfig"]["NetworkMode"].partition(":")
    return pod_id if kind == "container" else None
