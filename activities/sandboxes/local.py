"""The `local` provider: boxes made of namespaces on this machine's own system files, without an engine.

A box is a directory `<state>/boxes/<name>/` and the processes of its pod. All of it survives the worker:
a successor finds it by name, and knows its processes by pid and start time.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from activities.sandboxes import cgroups, process
from activities.sandboxes.base import PIDS_LIMIT, BoxListing, BoxSpec, ImageListing, ImageRef, ImageRequest
from activities.sandboxes.local_box import SERVICE, LocalBox
from activities.sandboxes.local_host import LocalHost
from activities.sandboxes.local_image import LocalImage, LocalImages
from activities.sandboxes.local_life import remove_box, remove_tree, start_box
from activities.sandboxes.local_mounts import Root
from activities.sandboxes.local_pod import Making, end_pod
from activities.sandboxes.local_record import BoxDirectory, BoxRecord
from activities.sandboxes.local_spawn import process_key
from activities.sandboxes.local_template import ensure_template
from activities.sandboxes.process import ProcessSpec
from domain.errors import ProviderCreateFailure, SandboxDeath

# A box without a declared size has one all the same, so that filling it fills nothing else.
DEFAULT_STORAGE_MB = 10 * 1024


class LocalProvider:
    """Boxes of this host and user. `python` runs the relays with its standard library alone."""

    name = "local"

    def __init__(self, state_dir: Path, gateway_socket: Path, python: str = sys.executable) -> None:
        self._host = LocalHost(state_dir, gateway_socket, python)
        self._host.make_state_dir()
        self._images = LocalImages(self._host)
        self._is_public_proved = False

    async def ensure_image(self, request: ImageRequest) -> ImageRef:
        return await self._images.ensure(request)

    async def create(self, spec: BoxSpec) -> LocalBox:
        if spec.network_mode == "allowlist":
            raise ProviderCreateFailure("local boxes have no network mode 'allowlist'")
        if spec.network_mode == "public":
            await self._require_public()
        image = self._images.load(spec.image.handle)
        directory = BoxDirectory(self._host.state_dir, spec.tag.name)
        async with directory.locked() as lock:
            found = await self._find(directory, spec)
            if found is not None:
                return found
            try:
                return await self._make(Making(self._host, directory, lock), spec, image)
            except BaseException:
                await remove_box(directory)
                raise

    async def _require_public(self) -> None:
        """Told before anything is made; what once worked on this host is not tried again for each box."""
        if not self._is_public_proved and (lacking := await self._host.why_not_public()):
            raise ProviderCreateFailure(f"network mode 'public' {lacking}")
        self._is_public_proved = True

    async def _find(self, directory: BoxDirectory, spec: BoxSpec) -> LocalBox | None:
        record = directory.read()
        if record is None:
            return None
        if record.tag.installation_id != spec.tag.installation_id:
            raise ProviderCreateFailure(f"the name {directory.name} belongs to another installation")
        if record.tag.fence > spec.tag.fence:
            raise ProviderCreateFailure(f"a later try has made {directory.name}")
        if not _runs(record):
            await remove_box(directory)
            return None
        return LocalBox(self._host, directory, directory.raise_fence(record, spec.tag.fence))

    async def _make(self, making: Making, spec: BoxSpec, image: LocalImage) -> LocalBox:
        directory = making.directory
        env = {**image.env, **spec.env}
        workdir = spec.workdir or image.workdir or "/"
        storage_mb = spec.storage_mb or DEFAULT_STORAGE_MB
        record = BoxRecord(spec.tag, spec.network_mode, workdir, env, None, None, spec.memory_mb, storage_mb)
        directory.write(record)
        limits = cgroups.Limits(spec.memory_mb, spec.cpus, PIDS_LIMIT)
        await asyncio.to_thread(cgroups.make_groups, directory.name, limits)
        root = Root(await ensure_template(self._host.state_dir), image.layers, spec.mounts)
        box, record = await start_box(making, record, root, spec.lifetime_sec)
        if image.service:
            service = ProcessSpec(SERVICE, image.service, image.user, image.workdir or "/", env)
            await process.start(box, service)
            record = replace(record, has_service=True)
        directory.write(record)
        return LocalBox(self._host, directory, record)

    async def attach(self, box_id: str) -> LocalBox:
        directory = BoxDirectory(self._host.state_dir, box_id)
        record = directory.read()
        if record is None or not _runs(record):
            raise SandboxDeath(f"the box {box_id} is gone")
        return LocalBox(self._host, directory, record)

    @property
    def disks(self) -> tuple[Path, ...]:
        return (self._host.state_dir,)

    async def list(self, installation_id: str) -> list[BoxListing]:
        return await asyncio.to_thread(self._list, installation_id)

    async def clear_litter(self, *, is_dry: bool) -> list[str]:
        """Builds of dead processes, and what a dead process had thrown away but not removed yet."""
        lost = await self._images.lost_builds(is_dry=is_dry)
        thrown = [
            left
            for state_dir in (self._host.state_dir, self._host.builds)
            for left in _folders(state_dir / "trash")
        ]
        if not is_dry:
            for left in thrown:
                await asyncio.to_thread(remove_tree, left)
        return [*(f"build {name}" for name in lost), *(f"trash {left.name}" for left in thrown)]

    async def images(self) -> list[ImageListing]:
        return await self._images.built()

    async def remove_image(self, name: str) -> bool:
        if await asyncio.to_thread(self._is_image_in_use, name):
            return False
        await self._images.remove(name)
        return True

    def _is_image_in_use(self, name: str) -> bool:
        """A box's root lies on its image's layers, as its mounts tell."""
        boxes = [BoxDirectory(self._host.state_dir, each.name).read() for each in self._box_folders()]
        inits = [record.init for record in boxes if record is not None and _runs(record)]
        return any(name in Path(f"/proc/{init[0]}/mountinfo").read_text() for init in inits if init)

    async def stop(self, box_id: str) -> None:
        directory = BoxDirectory(self._host.state_dir, box_id)
        async with directory.locked():
            await end_pod(directory)

    def _list(self, installation_id: str) -> list[BoxListing]:
        directories = [BoxDirectory(self._host.state_dir, each.name) for each in self._box_folders()]
        records = [(each.name, each.read(), _written_at(each)) for each in directories]
        return [
            BoxListing(name, record.tag, _runs(record), made_at)
            for name, record, made_at in records
            if record is not None and record.tag.installation_id == installation_id
        ]

    def _box_folders(self) -> list[Path]:
        return _folders(self._host.state_dir / "boxes")

    async def destroy(self, box_id: str) -> None:
        directory = BoxDirectory(self._host.state_dir, box_id)
        async with directory.locked():
            await remove_box(directory)
            directory.forget_lock()

    async def close(self) -> None:
        """Boxes go on without us."""


def _runs(record: BoxRecord) -> bool:
    """Both first processes are there, and the box's can be entered: one that is ending cannot."""
    keys = (record.pod, record.init)
    if any(key is None or process_key(key[0]) != key for key in keys):
        return False
    return record.init is not None and Path(f"/proc/{record.init[0]}/root").exists()


def _written_at(directory: BoxDirectory) -> datetime:
    """When its record was last written; long ago for one that is on its way out."""
    try:
        return datetime.fromtimestamp((directory.path / "record.json").stat().st_mtime, UTC)
    except FileNotFoundError:
        return datetime.fromtimestamp(0, UTC)


def _folders(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except FileNotFoundError:
        return []
