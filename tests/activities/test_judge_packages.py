"""Wheels for a judge that reaches no index: fetched once, found by pip and uv without a network."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from activities.judge_packages import (
    INSTALLERS_ENV,
    MOUNTED_AT,
    JudgePackagesUnavailable,
    WheelSet,
    ensure_wheels,
)

SMALL = (WheelSet("3.11", ("six==1.17.0",)),)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bundles")

    async def twice() -> list[Path]:
        return list(await asyncio.gather(ensure_wheels(root, SMALL), ensure_wheels(root, SMALL)))

    first, second = asyncio.run(twice())
    assert first == second
    return first


def test_they_are_fetched_once_and_readable_by_all(wheels: Path) -> None:
    assert [path.name for path in wheels.iterdir()] == ["six-1.17.0-py2.py3-none-any.whl"]
    assert (wheels.stat().st_mode & 0o777, next(wheels.iterdir()).stat().st_mode & 0o777) == (0o755, 0o644)
    assert sorted(os.listdir(wheels.parent)) == [".locks", wheels.name]


@pytest.mark.parametrize(
    "install",
    [
        [sys.executable, "-m", "pip", "install", "--quiet", "--target"],
        [f"{Path(sys.executable).parent}/uv", "pip", "install", "--quiet", "--target"],
    ],
    ids=["pip", "uv"],
)
def test_the_tools_of_an_image_find_them_and_ask_nobody_else(
    wheels: Path, tmp_path: Path, install: list[str]
) -> None:
    env = {name: value.replace(MOUNTED_AT, str(wheels)) for name, value in INSTALLERS_ENV.items()}
    env |= {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache")}
    env["PIP_CONFIG_FILE"] = os.devnull
    subprocess.run([*install, str(tmp_path / "into"), "six"], env=env, check=True)
    assert (tmp_path / "into" / "six.py").exists()
    refused = subprocess.run(
        [*install, str(tmp_path / "into"), "iniconfig"], env=env, capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0


async def test_what_cannot_be_fetched_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(JudgePackagesUnavailable, match=r"six==0\.0\.1 cannot be fetched"):
        await ensure_wheels(tmp_path, (WheelSet("3.11", ("six==0.0.1",)),))
    assert os.listdir(tmp_path) == [".locks"]
