"""The wheel, installed outside the repository, does what the checkout does, whoever runs it and wherever."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.stack_harness import SOURCE, Stack, normal_user, temporary_stack

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("wheel"), pytest.mark.timeout(900)]

ROOMS = ("domain", "workflows", "activities", "gateway", "store", "api", "cli")
# Nothing of the checkout's environment: what the wheel needs beside itself is the system's.
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NO_DOCKER = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}
TEST_IMAGE = "evolve-test/debian:bookworm"
TASKS = {path.name for path in (SOURCE / "examples/tasks").iterdir()}
MOST_SEC = 300


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that every user can enter."""
    made = Path(tempfile.mkdtemp(prefix="evolve-wheel-", dir="/tmp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def wheel(place: Path) -> Path:
    """Built with the locked hatchling, without fetching anything."""
    _uv("build", "--wheel", "--no-build-isolation", "--offline", "--python", sys.executable, "-o", place)
    return next(place.glob("*.whl"))


@pytest.fixture(scope="module")
def venv(place: Path, wheel: Path) -> Path:
    return install(wheel, place / "venv")


def install(wheel: Path, venv: Path) -> Path:
    """The wheel with its `server` extra in an empty environment; each package has the lock's hash."""
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wanted = venv.with_suffix(".txt")
    wanted.write_text(f"evolve-evals[server] @ file://{wheel} --hash=sha256:{digest}\n")
    _uv("venv", "--python", normal_user().get("python", sys.executable), venv)
    locked = ("--require-hashes", "-r", wanted, "-c", SOURCE / "requirements.lock")
    _uv("pip", "install", "--python", venv / "bin/python", *locked)
    return venv


def _uv(*words: str | Path) -> None:
    uv = Path(sys.executable).parent / "uv"
    done = subprocess.run((uv, *words), cwd=SOURCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_wheel_holds_the_rooms_and_the_shared_data_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    data = {name.partition(".data/data/share/evolve/")[2] for name in names if ".data/" in name}
    assert names - metadata - {name for name in names if ".data/" in name} == _files(*ROOMS)
    assert data == _files("examples") | {"temporal-dev.yaml"}
    needed = {"activities/sandboxes/runner.sh", "activities/sandboxes/local_pod.sh"}
    assert needed < names
    assert any(name.startswith("store/migrations/versions/0001") for name in names)


def _files(*directories: str) -> set[str]:
    found = (path for directory in directories for path in (SOURCE / directory).rglob("*"))
    return {
        str(path.relative_to(SOURCE)) for path in found if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_environment_has_what_the_lock_says_and_no_tool_of_ours(venv: Path) -> None:
    installed = {path.name.partition("-")[0] for path in venv.glob("lib/python3*/site-packages/*.dist-info")}
    assert {"evolve_evals", "temporalio", "fastapi"} < installed
    assert not {"pytest", "ruff", "pyright", "hatchling", "evolvingmachines_evolve"} & installed


def quickstart(stack: Stack, venv: Path) -> tuple[str, float]:
    """Run it from a directory whose `api` is the user's own; what it said, and how long it took."""
    own = Path(stack.environment["HOME"]) / "api"
    own.mkdir(exist_ok=True)
    (own / "__init__.py").write_text("raise RuntimeError('not the api of evolve')\n")
    began = time.monotonic()
    done = subprocess.run(
        (venv / "bin/evolve", "quickstart"),
        env=stack.environment,
        cwd=own.parent,
        capture_output=True,
        text=True,
        check=False,
        user=stack.user,
        group=stack.user,
        extra_groups=None if stack.user is None else (),
    )
    took_sec = time.monotonic() - began
    assert done.returncode == 0, done.stdout + done.stderr + stack.logs()
    assert took_sec < MOST_SEC
    table = [line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 2]
    assert ["task", "oracle", "nop"] in table
    assert {row[0] for row in table if row[1:] == ["1.0", "0.0"]} == TASKS
    assert f"API          {stack.api_url}\n" in done.stdout
    assert f":{stack.environment['EVOLVE_TEMPORAL_UI_PORT']}/namespaces/evolve" in done.stdout
    assert str(stack.home / "credentials.json") in done.stdout
    return done.stdout, took_sec


def _options(venv: Path, place: Path, **environment: str) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="person-", dir=place))
    settings = {"HOME": str(home), "PATH": PATH, **environment}
    return {"python": str(venv / "bin/python"), "environment": settings}


def test_quickstart_without_docker_and_quicker_a_second_time(venv: Path, place: Path) -> None:
    with temporary_stack(**_options(venv, place, **NO_DOCKER)) as stack:
        said, first_sec = quickstart(stack, venv)
        assert "provider     local: docker is not offered: " in said
        said, second_sec = quickstart(stack, venv)
        assert "is already running" in said
        assert "is published already" in said
        assert second_sec < first_sec


@pytest.mark.root
def test_quickstart_of_a_normal_user(venv: Path, place: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    options = {**normal_user(), **_options(venv, place)}
    os.chown(options["environment"]["HOME"], nobody, nobody)
    with temporary_stack(**options) as stack:
        said, _ = quickstart(stack, venv)
        assert "provider     local: " in said
        assert stack.home.stat().st_uid == nobody


@pytest.mark.docker
def test_quickstart_on_docker(wheel: Path, place: Path) -> None:
    venv = install(wheel, place / "docker")
    # The examples' base image is on a registry; here an image with the same tools stands for it.
    for dockerfile in venv.glob("share/evolve/examples/tasks/*/environment/Dockerfile"):
        text = dockerfile.read_text().replace("FROM python:3.12-bookworm", f"FROM {TEST_IMAGE}")
        # Not written in place: uv links installed files to its cache.
        dockerfile.unlink()
        dockerfile.write_text(text)
    with temporary_stack(**_options(venv, place)) as stack:
        said, _ = quickstart(stack, venv)
        assert "provider     docker: a Docker engine answers" in said
