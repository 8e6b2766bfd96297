"""Local boxes for tests: a provider on a state directory of its own, and a look at what it left behind."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from activities.sandboxes.base import ImageRequest
from activities.sandboxes.local import LocalProvider
from tests.activities.box_conformance import Bench
from tests.waiting import eventually

IS_ROOT = os.geteuid() == 0


def image_request(folder: Path, dockerfile: str, installation_id: str = "i") -> ImageRequest:
    """A task's `environment/` in `folder`, under a digest that no other has."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    return ImageRequest(installation_id, folder, None, str(uuid.uuid4()), 120.0)


@asynccontextmanager
async def local_bench(state_dir: Path, dockerfile: str = "FROM any\nWORKDIR /app\n") -> AsyncIterator[Bench]:
    """Boxes that are destroyed at the end, when nothing of them may be left on this host."""
    make_gateway_folder(state_dir)
    provider = LocalProvider(state_dir, state_dir / "gw" / "gateway.sock", sys.executable)
    installation_id = str(uuid.uuid4())
    request = image_request(state_dir / "task", dockerfile, installation_id)
    image = await provider.ensure_image(request)
    bench = Bench(provider, image, installation_id)
    try:
        yield bench
    finally:
        await bench.clean()
        await eventually(lambda: not leftovers(state_dir))
    assert await provider.list(installation_id) == []


def make_gateway_folder(state_dir: Path) -> None:
    (state_dir / "gw").mkdir(parents=True)


def leftovers(state_dir: Path) -> list[str]:
    """Processes, mounts and loop devices of boxes below `state_dir`."""
    names = [each.name for kind in ("boxes", "builds/boxes") for each in _entries(state_dir / kind)]
    left = [f"directory {name}" for name in names]
    own = os.getpid()
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != own and _is_of(process, str(state_dir)):
            left.append(f"process {process.name}")
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        if str(state_dir) in _text(backing):
            left.append(f"loop device {backing}")
    return left


async def clean(bench: Bench) -> None:
    """End the boxes of one test; their control groups are gone then."""
    await bench.clean()
    assert not [name for name in bench.made if has_groups(name)]
    bench.made.clear()


def has_groups(name: str) -> bool:
    trees = [Path("/sys/fs/cgroup"), *_entries(Path("/sys/fs/cgroup"))]
    return any((tree / "evolve" / name).exists() for tree in trees)


def _is_of(process: Path, state_dir: str) -> bool:
    command = _text(process / "cmdline").split("\0")
    is_ours = any(word in command for word in ("unshare", "nsenter")) or "relay.py" in "".join(command)
    return state_dir in _text(process / "mountinfo") or (is_ours and state_dir in "".join(command))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _entries(path: Path) -> list[Path]:
    return list(path.iterdir()) if path.exists() else []
