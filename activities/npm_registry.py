"""The npm registry, as much of it as a bundle needs: which versions there are, and tarballs, checked."""

from __future__ import annotations

import asyncio
import base64
import configparser
import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp

from domain.errors import EvolveError, InfrastructureFailure

LOOKUP_SEC = 15.0
DOWNLOAD_SEC = 900.0
CHUNK_BYTES = 1024 * 1024
_ALGORITHMS = ("sha512", "sha384", "sha256")


class BundleUnavailable(InfrastructureFailure):
    """What a harness is made of cannot be had now."""

    code = "bundle_unavailable"


@dataclass(frozen=True)
class Tarball:
    """One package's archive. `integrity` is the registry's word, `<algorithm>-<base64>`."""

    spec: str
    url: str
    integrity: str


def split_spec(spec: str) -> tuple[str, str]:
    """Name and version of `name@version`, where a name may begin with `@`."""
    name, _, version = spec.rpartition("@")
    return name, version


async def registry_url(configured: str | None) -> str:
    """The registry to ask: EVOLVE_NPM_REGISTRY's value, else the one that npm is set to on this host.

    Raises `BundleUnavailable` on a host that has neither.
    """
    found = configured or os.environ.get("NPM_CONFIG_REGISTRY") or _user_registry()
    return found or await _npm_registry()


def _user_registry() -> str | None:
    """`registry` of the user's npm configuration file, a file of `key = value` lines."""
    path = Path(os.environ.get("NPM_CONFIG_USERCONFIG") or Path.home() / ".npmrc")
    parser = configparser.ConfigParser(
        delimiters=("=",), comment_prefixes=("#", ";"), strict=False, interpolation=None, allow_no_value=True
    )
    try:
        parser.read_string(f"[npm]\n{path.read_text()}")
    except (OSError, configparser.Error):
        return None
    return parser["npm"].get("registry")


async def _npm_registry() -> str:
    npm = shutil.which("npm")
    if npm is None:
        raise BundleUnavailable("this host has no npm to say where packages are: set EVOLVE_NPM_REGISTRY")
    process = await asyncio.create_subprocess_exec(
        npm, "config", "get", "registry", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    told, _ = await asyncio.wait_for(process.communicate(), LOOKUP_SEC)
    url = told.decode().strip()
    if not url.startswith("http"):
        raise BundleUnavailable("npm on this host names no registry: set EVOLVE_NPM_REGISTRY")
    return url


class NpmRegistry:
    """Look-ups and downloads. `url` None is what this host's npm is set to."""

    def __init__(self, url: str | None = None) -> None:
        self._configured = url
        self._url: str | None = None

    async def tarball(self, spec: str) -> Tarball | None:
        """The archive of an exact version; None when there is no such version."""
        name, version = split_spec(spec)
        found = await self._get(f"{quote(name, safe='@')}/{quote(version, safe='')}")
        if found is None:
            return None
        return Tarball(spec, found["dist"]["tarball"], found["dist"].get("integrity") or "")

    async def latest(self, name: str) -> str | None:
        """The version that the dist-tag `latest` names; None for an unknown package."""
        found = await self._get(f"{quote(name, safe='@')}/latest")
        return None if found is None else found["version"]

    async def _get(self, path: str) -> dict[str, Any] | None:
        """Raises `BundleUnavailable` when the registry cannot be asked."""
        self._url = self._url or await registry_url(self._configured)
        timeout = aiohttp.ClientTimeout(total=LOOKUP_SEC)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=True) as session,
                session.get(f"{self._url.rstrip('/')}/{path}") as response,
            ):
                if response.status == 404:
                    return None
                response.raise_for_status()
                return await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise BundleUnavailable(f"the package registry cannot be asked for {path}: {error!r}") from None

    async def download(self, tarball: Tarball, target: Path) -> None:
        """The archive as a file. Raises `BundleUnavailable` when it does not come, or is another."""
        timeout = aiohttp.ClientTimeout(total=DOWNLOAD_SEC, sock_read=LOOKUP_SEC * 4)
        digest = _digest(tarball)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=True, auto_decompress=False) as session,
                session.get(tarball.url) as response,
            ):
                response.raise_for_status()
                with target.open("wb") as file:
                    async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                        digest.update(chunk)
                        file.write(chunk)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise BundleUnavailable(f"{tarball.spec} cannot be downloaded: {error!r}") from None
        if base64.b64encode(digest.digest()).decode() not in tarball.integrity:
            raise BundleUnavailable(f"{tarball.spec}: what came is not what the registry promised")


def _digest(tarball: Tarball) -> Any:
    """The strongest hash that the registry gives; raises `BundleUnavailable` when it gives none."""
    for algorithm in _ALGORITHMS:
        if tarball.integrity.startswith(f"{algorithm}-"):
            return hashlib.new(algorithm)
    raise BundleUnavailable(f"{tarball.spec}: the registry tells no digest that could be checked")


def version_not_found(harness: str, version: str) -> EvolveError:
    """A pin that does not exist."""
    return EvolveError(f"{harness} has no version {version}", code="agent_version_not_found", param="version")


def version_unresolvable(harness: str, reason: str) -> EvolveError:
    """The registry cannot be asked, and this host has no version of its own."""
    return EvolveError(
        f"no version of {harness} can be told: {reason}", code="agent_version_unresolvable", param="version"
    )
