"""How a local box begins and ends, for tasks and for the building of images alike."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from activities.sandboxes import cgroups
from activities.sandboxes.base import BoxTag
from activities.sandboxes.local_box import LocalBox
from activities.sandboxes.local_host import LocalHost
from activities.sandboxes.local_mounts import Root, user_namespaces
from activities.sandboxes.local_pod import (
    Ceilings,
    Making,
    attach_nat,
    boot_box,
    end_pod,
    start_pod,
    wait_for_relay,
)
from activities.sandboxes.local_record import BoxDirectory, BoxRecord
from activities.sandboxes.local_template import ensure_template
from domain.errors import ProviderCreateFailure

CGROUP_REMOVAL_SEC = 5.0
CGROUP_POLL_SEC = 0.01
PROBE_SEC = 60.0

First = TypeVar("First")
Second = TypeVar("Second")


async def start_box(
    making: Making, record: BoxRecord, root: Root, lifetime_sec: float
) -> tuple[LocalBox, BoxRecord]:
    """Pod, box, NAT and relay, ready to use; the record of what runs is still to be written."""
    is_public = record.network_mode == "public"
    ceilings = Ceilings(lifetime_sec, record.memory_mb, record.storage_mb)
    async with AsyncExitStack() as stack:
        pod, namespaces = await _both(
            start_pod(making, is_public=is_public, ceilings=ceilings),
            stack.enter_async_context(user_namespaces(making.host)),
        )
        booting = boot_box(making, pod, namespaces, root, ceilings)
        if is_public:
            init, _ = await _both(booting, attach_nat(making, pod, with_firewall=False))
        else:
            init = await booting
    record = replace(record, pod=pod, init=init)
    box = LocalBox(making.host, making.directory, record)
    await box.write_resolver(record.network_mode)
    await box.make_workdir()
    await wait_for_relay(making)
    return box, record


async def _both(first: Awaitable[First], second: Awaitable[Second]) -> tuple[First, Second]:
    """Wait for both, side by side; when one fails the other is not left running."""
    ends = await asyncio.gather(first, second, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException):
            raise end
    return cast("tuple[First, Second]", tuple(ends))


async def probe_box(host: LocalHost) -> None:
    """Make the smallest box and end it; raises what stands against boxes on this host."""
    name = f"probe-{uuid.uuid4()}"
    directory = BoxDirectory(host.builds, name)
    record = BoxRecord(BoxTag("", "", name, 0, 0, "agent", 0), "no-network", "/", {})
    async with directory.locked() as lock:
        try:
            directory.write(record)
            root = Root(await ensure_template(host.state_dir))
            box, _ = await start_box(Making(host, directory, lock), record, root, PROBE_SEC)
            await box.run(["true"])
        finally:
            await remove_box(directory)
            directory.forget_lock()


async def remove_box(directory: BoxDirectory) -> None:
    """End a box and all that belongs to it, whatever there is of it."""
    await end_pod(directory)
    give_up_at = asyncio.get_running_loop().time() + CGROUP_REMOVAL_SEC
    while not await asyncio.to_thread(cgroups.remove_groups, directory.name):
        if asyncio.get_running_loop().time() > give_up_at:
            raise ProviderCreateFailure(f"the control groups of {directory.name} would not go away")
        await asyncio.sleep(CGROUP_POLL_SEC)
    left = await asyncio.to_thread(directory.discard)
    if left is not None:
        await asyncio.to_thread(remove_tree, left)


def remove_tree(path: Path) -> None:
    """Remove a tree of which a box may have closed parts; to root nothing is closed."""
    if os.geteuid() != 0:
        for folder, folders, _ in os.walk(path):
            for name in folders:
                if not os.path.islink(os.path.join(folder, name)):
                    os.chmod(os.path.join(folder, name), 0o700)
    shutil.rmtree(path, ignore_errors=True)
