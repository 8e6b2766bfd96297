"""Python packages that judges are written with, for a verifier that reaches no index (contract 6.8).

A folder of wheels, fetched once per host from the index that pip on it is set to, and seen read-only by
the box; pip and uv are told to look there and nowhere else. Python itself, and uv or pip, are the image's.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from activities.sandboxes.base import Mount
from activities.sandboxes.file_lock import locked
from activities.trial_context import Hands, TrialContext
from domain.errors import InfrastructureFailure
from domain.judges import judge_families

MOUNTED_AT = "/opt/evolve-judge"
FETCH_TIMEOUT_SEC = 1800.0
SAID_BYTES = 1_000
LITELLM, REWARDKIT = "litellm==1.110.2", "harbor-rewardkit==0.2.3"
_GLIBC = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
_INSTALLERS = re.compile(rb"\b(uvx?|pip3?)\b")
_PACKAGES = re.compile(rb"\b(rewardkit|litellm)\b")
MAX_SCRIPT_BYTES = 1024 * 1024


@dataclass(frozen=True)
class WheelSet:
    """What is fetched for one version of Python."""

    python: str
    packages: tuple[str, ...]


WHEEL_SETS = (
    WheelSet("3.11", (LITELLM,)),  # rewardkit needs 3.12
    WheelSet("3.12", (LITELLM, REWARDKIT)),
    WheelSet("3.13", (LITELLM, REWARDKIT)),
)
INSTALLERS_ENV = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": MOUNTED_AT,
    "UV_OFFLINE": "1",
    "UV_NO_INDEX": "1",
    "UV_FIND_LINKS": MOUNTED_AT,
    "UV_PYTHON_DOWNLOADS": "never",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it would ask the internet, and wait
}


class JudgePackagesUnavailable(InfrastructureFailure):
    """The wheels cannot be fetched on this host."""

    code = "judge_packages_unavailable"


async def judge_mounts(hands: Hands, context: TrialContext) -> tuple[Mount, ...]:
    """What a verifier's box is to see; nothing where it needs none. Raises `JudgePackagesUnavailable`."""
    if not await _is_needed(hands, context):
        return ()
    return (Mount(await ensure_wheels(hands.settings.bundles_dir, WHEEL_SETS), MOUNTED_AT),)


async def judge_package_env(hands: Hands, context: TrialContext) -> dict[str, str]:
    """How its pip and uv find them."""
    return dict(INSTALLERS_ENV) if await _is_needed(hands, context) else {}


async def _is_needed(hands: Hands, context: TrialContext) -> bool:
    task = context.task
    envs = (task.verifier_env, *(step.verifier_env for step in task.steps))
    if task.verifier_network.mode != "no-network" or not any(map(judge_families, envs)):
        return False
    return await asyncio.to_thread(_installs, await hands.task_dir(context.stored))


def _installs(task_dir: Path) -> bool:
    """Whether verifiers' scripts call pip or uv, and name one of the packages."""
    files = (*task_dir.glob("tests/**/*"), *task_dir.glob("steps/*/tests/**/*"))
    small = (each for each in files if each.is_file() and each.stat().st_size <= MAX_SCRIPT_BYTES)
    scripts = [each.read_bytes() for each in small]
    return all(any(words.search(script) for script in scripts) for words in (_INSTALLERS, _PACKAGES))


async def ensure_wheels(root: Path, sets: Sequence[WheelSet]) -> Path:
    """The folder below `root`, fetched when it is not there; whoever else wants it waits."""
    name = f"judge-packages-{hashlib.sha256(repr(sets).encode()).hexdigest()[:12]}"
    place = root / name
    if place.exists():
        return place
    async with locked(root / ".locks" / name):
        if not place.exists():
            building = root / f".building-{name}"
            await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)
            building.mkdir(parents=True)
            try:
                for each in sets:
                    await _fetch(each, building)
                _open_to_all(building)
                building.rename(place)
            finally:
                await asyncio.to_thread(shutil.rmtree, building, ignore_errors=True)
    return place


async def _fetch(wheels: WheelSet, target: Path) -> None:
    machine = os.uname().machine
    platforms = [word for name in _GLIBC for word in ("--platform", f"{name}_{machine}")]
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", wheels.python, *platforms]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", str(target)]
    fetching = await asyncio.create_subprocess_exec(
        *command, *wheels.packages, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_SEC):
            _, said = await fetching.communicate()
    except TimeoutError:
        said = b"it took too long"
    finally:
        if fetching.returncode is None:
            fetching.kill()
            await fetching.wait()
    if fetching.returncode != 0:
        told = said[-SAID_BYTES:].decode(errors="replace").strip()
        raise JudgePackagesUnavailable(f"{', '.join(wheels.packages)} cannot be fetched: {told}")


def _open_to_all(folder: Path) -> None:
    """Any user of a box reads them, whatever this process's umask."""
    folder.chmod(0o755)
    for wheel in folder.iterdir():
        wheel.chmod(0o644)
