"""The image of a separate verifier: the agent's again, one of its own from `tests/`, or a pinned one."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

from activities.sandboxes.base import ImageRef, ImageRequest, SandboxProvider
from activities.trial_context import Hands, StoredTask
from domain.verifier_place import verifier_place


async def ensure_verifier_image(
    hands: Hands, stored: StoredTask, provider: SandboxProvider, build_timeout_sec: float
) -> ImageRef:
    """Find or build it on this host. Raises `ImageBuildFailed` and `TaskError`."""
    place = verifier_place(stored.task)
    folder = await hands.task_dir(stored) / place.folder
    is_built_from_tests = place.docker_image is None and not place.is_tasks_image
    return await provider.ensure_image(
        ImageRequest(
            installation_id=hands.installation_id,
            context_dir=folder,
            docker_image=place.docker_image,
            context_digest=await asyncio.to_thread(_tree_digest, folder)
            if is_built_from_tests
            else stored.image_digest,
            build_timeout_sec=build_timeout_sec,
        )
    )


def _tree_digest(folder: Path) -> str:
    """Names, modes and bytes of all files: what an image is built once per."""
    outer = hashlib.sha256()
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        name, is_executable = path.relative_to(folder).as_posix(), bool(path.stat().st_mode & 0o111)
        outer.update(
            f"{name}\0{int(is_executable)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return f"sha256:{outer.hexdigest()}"
