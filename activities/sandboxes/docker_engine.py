"""The Docker engine of this machine: found, judged, spoken to; its errors told in our own terms."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from aiodocker import Docker
from aiodocker.exceptions import DockerError

from domain.errors import (
    CapacityWait,
    InfrastructureFailure,
    ProviderCreateFailure,
    ProviderUnreachable,
    SandboxDeath,
)

DEFAULT_SOCKETS = ("/run/docker.sock", "/var/run/docker.sock")
ENGINE_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=120)
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5)
CONNECTION_LOST = 900  # aiodocker's own status: no HTTP answer came

# What an engine says when the host has no room; anything else is a failure of the create itself.
NO_ROOM = (
    "no space left on device",
    "cannot allocate memory",
    "non-overlapping IPv4 address pool",
    "too many open files",
    "resource temporarily unavailable",
)

# What the net pod runs from this machine's own files, beside the interpreter.
HOST_PROGRAMS = ("iptables-restore", "setpriv")


@dataclass(frozen=True)
class DockerEngine:
    """What answers at `socket`. `refusal` says why boxes cannot run on it, None when they can."""

    socket: Path
    version: str = ""
    api_version: str = ""
    can_limit_storage: bool = False
    data_root: Path = Path("/var/lib/docker")
    refusal: str | None = None


async def docker_engine(docker_host: str | None = None) -> DockerEngine:
    """Judge the engine at `docker_host`, else at `DOCKER_HOST`, else at the usual sockets. Never raises.

    Only a rootful engine on this same kernel serves: the net pod mounts this machine's interpreter and
    the gateway's unix socket, which another machine, a VM or a user namespace does not have.
    """
    socket, refusal = _find_socket(docker_host or os.environ.get("DOCKER_HOST"))
    if refusal:
        return DockerEngine(socket, refusal=refusal)
    try:
        async with connect(socket, timeout=PROBE_TIMEOUT) as docker:
            version, info = await docker.version(), await docker.system.info()
    except (DockerError, aiohttp.ClientError, TimeoutError, OSError) as error:
        return DockerEngine(socket, refusal=f"no Docker engine answers at {socket}: {error}")
    return DockerEngine(
        socket,
        version=version["Version"],
        api_version=version["ApiVersion"],
        can_limit_storage=_can_limit_storage(info),
        data_root=Path(info["DockerRootDir"]),
        refusal=_why_not_local(info) or _missing_program(),
    )


def _find_socket(docker_host: str | None) -> tuple[Path, str | None]:
    if docker_host is None:
        found = next((Path(each) for each in DEFAULT_SOCKETS if Path(each).is_socket()), None)
        default = Path(DEFAULT_SOCKETS[0])
        return (found, None) if found else (default, f"no Docker engine: there is no socket {default}")
    if not docker_host.startswith("unix://"):
        return Path(), f"DOCKER_HOST is {docker_host}: only an engine on this machine's unix socket serves"
    return Path(docker_host.removeprefix("unix://")), None


def _why_not_local(info: Mapping[str, Any]) -> str | None:
    if info.get("OSType") != "linux":
        return f"the Docker engine runs {info.get('OSType')} containers, not linux ones"
    if any("rootless" in option for option in info.get("SecurityOptions") or ()):
        return "the Docker engine is rootless: its containers cannot reach the gateway's socket"
    if any("userns" in option for option in info.get("SecurityOptions") or ()):
        return "the Docker engine remaps users (userns-remap): its net pods cannot write a firewall"
    if info.get("KernelVersion") != os.uname().release:
        return "the Docker engine runs on another kernel (a VM or another machine) than this process"
    return None


def _missing_program() -> str | None:
    for program in HOST_PROGRAMS:
        if not any(
            (Path(folder) / program).exists() for folder in ("/usr/sbin", "/usr/bin", "/sbin", "/bin")
        ):
            return f"the docker provider needs this machine's {program}, which is not installed"
    return None


def _can_limit_storage(info: Mapping[str, Any]) -> bool:
    """overlay2 limits a container's layer on xfs alone, and there only when mounted with project quotas."""
    if info.get("Driver") in ("btrfs", "zfs"):
        return True
    filesystem = dict(info.get("DriverStatus") or ()).get("Backing Filesystem")
    return info.get("Driver") == "overlay2" and filesystem == "xfs" and _has_quota(info["DockerRootDir"])


def _has_quota(folder: str) -> bool:
    """Whether the mount that holds `folder` has xfs project quotas on (proc(5), mountinfo)."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    holding = [words for words in mounts if Path(folder).is_relative_to(words[4])]
    options = max(holding, key=lambda words: len(words[4]))[-1].split(",")
    return "prjquota" in options or "pquota" in options


def open_docker(socket: Path, timeout: aiohttp.ClientTimeout = ENGINE_TIMEOUT) -> Docker:
    """A client without aiohttp's limit of 100 connections: each followed command holds one."""
    connector = aiohttp.UnixConnector(str(socket), limit=0)
    session = aiohttp.ClientSession(connector=connector)
    return Docker(url="http://localhost", connector=connector, session=session, timeout=timeout)


@asynccontextmanager
async def connect(socket: Path, timeout: aiohttp.ClientTimeout = ENGINE_TIMEOUT) -> AsyncIterator[Docker]:
    docker = open_docker(socket, timeout)
    try:
        yield docker
    finally:
        await close_docker(docker)


async def close_docker(docker: Docker) -> None:
    await docker.close()
    await docker.session.close()


@contextmanager
def creating(what: str) -> Iterator[None]:
    """Engine errors of a create: no room is waited for, silence is not a failure, the rest is."""
    try:
        yield
    except DockerError as error:
        raise _create_failure(what, error) from error
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ProviderUnreachable(f"the Docker engine does not answer ({what}): {error}") from error


def _create_failure(what: str, error: DockerError) -> InfrastructureFailure:
    if error.status == CONNECTION_LOST:
        return ProviderUnreachable(f"the Docker engine does not answer ({what}): {error.message}")
    if any(text.lower() in error.message.lower() for text in NO_ROOM):
        return CapacityWait(f"the Docker host has no room ({what}): {error.message}")
    return ProviderCreateFailure(f"the Docker engine refused ({what}): {error.message}")


@contextmanager
def using(box_id: str) -> Iterator[None]:
    """Engine errors of a call on a box: absent or stopped is death, silence is not."""
    try:
        yield
    except DockerError as error:
        if error.status in (404, 409) or "is not running" in error.message:
            raise SandboxDeath(f"the box {box_id} is gone: {error.message}") from error
        raise ProviderUnreachable(f"the Docker engine failed ({box_id}): {error}") from error
    except aiohttp.ClientError as error:
        raise ProviderUnreachable(f"the Docker engine does not answer ({box_id}): {error}") from error
