"""What a storm must not leave behind on the machine and in Temporal."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from temporalio.client import Client

from tests.chaos.nemesis import children
from tests.cli.stack_harness import CHILDREN, Stack
from workflows import names

# Processes of the stack that start others of their own for their own work.
_PARENTS = ("postgres", "temporal", "gateway")


def boxes(stack: Stack) -> list[str]:
    """Boxes of either provider."""
    state = stack.home / "state"
    folders = (state / "fast" / "boxes", state / "boxes")
    return sorted(entry.name for folder in folders if folder.exists() for entry in folder.iterdir())


def processes(stack: Stack) -> list[str]:
    """That know the stack's home and are none of the stack: agents, pods, relays, commands in boxes."""
    own = {pid for name in ("supervisor", *CHILDREN) if (pid := stack.record(name)) is not None}
    pids = stack.pids()
    for parent in _PARENTS:
        own |= _descendants(pids.get(parent, 0))
    own.add(os.getpid())
    home = str(stack.home.parent).encode()
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            known = command + (process / "environ").read_bytes()
        except OSError:
            continue  # it has ended
        if int(process.name) not in own and home in known and command:
            found.append(f"{process.name}: {command.replace(bytes(1), b' ').decode(errors='replace')[:200]}")
    return found


def _descendants(pid: int) -> set[int]:
    found = set(children(pid))
    for child in list(found):
        found |= _descendants(child)
    return found


def mounts(stack: Stack, of_ours: Path | None) -> list[str]:
    """Mounts below the home, without the small disk of the storm itself."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(str(stack.home)) and point != str(of_ours)]


def cgroups(trial_ids: set[str], *, but: set[str]) -> list[str]:
    """Control groups of these trials' boxes, without those of the boxes `but`."""
    found = [path for path in Path("/sys/fs/cgroup").glob("**/evolve-*") if path.name not in but]
    return [str(path) for path in found if any(trial_id in path.name for trial_id in trial_ids)]


def pending_activities(stack: Stack, at_most: int) -> list[str]:
    """Of workflows that run: what they wait for, and in which try."""
    return asyncio.run(_pending_activities(_address(stack), at_most))


async def _pending_activities(address: str, at_most: int) -> list[str]:
    client = await Client.connect(address, namespace=names.NAMESPACE)
    found: list[str] = []
    async for execution in client.list_workflows("ExecutionStatus = 'Running'", limit=at_most):
        described = await client.get_workflow_handle(execution.id).describe()
        pending = [str(each).replace("\n", " ") for each in described.raw_description.pending_activities]
        found.append(f"{execution.id}: {pending}")
    return found


def live_workflows(stack: Stack) -> list[str]:
    """Of jobs, trials and archives, all of which are over."""
    return asyncio.run(_live_workflows(_address(stack)))


def _address(stack: Stack) -> str:
    return f"127.0.0.1:{stack.environment['EVOLVE_TEMPORAL_PORT']}"


async def _live_workflows(address: str) -> list[str]:
    client = await Client.connect(address, namespace=names.NAMESPACE)
    running = client.list_workflows("ExecutionStatus = 'Running'")
    ids = [execution.id async for execution in running]
    return [each for each in ids if each.startswith(("job/", "trial/", "archive/"))]
