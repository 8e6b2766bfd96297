"""Bundles in real boxes: mounted or copied, on images with and without a C library that fits."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from activities.bundles import AgentInstallFailed, BundleFolder, Bundles
from activities.harnesses.base import Bundle
from activities.harnesses.home import FRESH_HOME, copy_skills, resolve_home, write_private
from activities.npm_registry import NpmRegistry
from activities.sandboxes.base import ImageRef
from activities.sandboxes.docker import DockerProvider
from tests.activities.box_conformance import Bench, sh
from tests.activities.docker_bench import build_image, close_provider, open_provider
from tests.activities.local_bench import IS_ROOT, local_bench

# A program of this host that needs glibc and answers `--version`: all that is asked of a harness's.
PROGRAM = "/usr/bin/env"
NATIVE, OWN = "/opt/evolve", "/opt/evolve/own"


class HostRegistry(NpmRegistry):
    """Never asked: the bundle is made by hand."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> BundleFolder:
    folder = tmp_path_factory.mktemp("bundle")
    folder.chmod(0o755)
    for each in ("bin", "node_modules"):
        (folder / each).mkdir()
    shutil.copy(PROGRAM, folder / "node_modules" / "tool")
    (folder / "bin" / "tool").symlink_to("../node_modules/tool")
    (folder / "bundle.json").write_text("{}")
    return BundleFolder(Bundle("tool", "1", (), "node_modules/tool"), folder, "digest", is_cache_hit=True)


@pytest.fixture
def bundles(tmp_path: Path) -> Bundles:
    return Bundles(tmp_path, HostRegistry())


@pytest_asyncio.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[DockerProvider]:
    provider = await open_provider(str(uuid.uuid4()), tmp_path_factory.mktemp("docker"))
    yield provider
    await close_provider(provider)


IMAGES = {
    "glibc": "FROM evolve-test/debian:bookworm\n"
    "RUN useradd -M -d /nonexistent homeless && useradd -m homely\n",
    "musl": "FROM evolve-test/busybox:1\n",
}


@pytest_asyncio.fixture(scope="module")
async def images(provider: DockerProvider, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ImageRef]:
    return {
        name: await build_image(provider, tmp_path_factory.mktemp(name), text)
        for name, text in IMAGES.items()
    }


@pytest_asyncio.fixture
async def bench(
    request: pytest.FixtureRequest, provider: DockerProvider, images: dict[str, ImageRef]
) -> AsyncIterator[Bench]:
    bench = Bench(provider, images[request.param], provider.installation_id)
    yield bench
    await bench.clean()


@pytest.mark.docker
@pytest.mark.parametrize(
    ("bench", "runs"), [("glibc", NATIVE), ("musl", OWN)], indirect=["bench"], ids=["glibc", "musl"]
)
@pytest.mark.parametrize("is_mounted", [True, False], ids=["mounted", "copied"])
async def test_the_program_runs_on_any_image_for_any_user(
    bench: Bench, runs: str, is_mounted: bool, made: BundleFolder, bundles: Bundles
) -> None:
    box = await bench.box(mounts=(made.mount,) if is_mounted else ())
    for user in (None, "65534"):
        root = await bundles.open_in(box, made, user)
        assert root == runs
        # What it starts is the image's own and knows nothing of another C library.
        told = await box.run([f"{root}/bin/tool", "sh", "-c", "cat /proc/self/maps; env"], user=user, env={})
        assert told.exit_code == 0
        assert b"LD_" not in told.stdout
        assert b"/opt/evolve/libc" not in told.stdout


@pytest.mark.docker
@pytest.mark.parametrize("bench", ["glibc"], indirect=True)
async def test_a_box_cannot_change_its_bundle(bench: Bench, made: BundleFolder) -> None:
    box = await bench.box(mounts=(made.mount,))
    result = await box.run(["sh", "-c", "rm -f /opt/evolve/bundle.json; echo x > /opt/evolve/new"])
    assert b"Read-only file system" in result.stderr
    assert await sh(box, "ls /opt/evolve/bundle.json")


@pytest.mark.docker
@pytest.mark.parametrize("bench", ["musl"], indirect=True)
async def test_a_program_that_never_runs_tells_why(
    bench: Bench, made: BundleFolder, bundles: Bundles, tmp_path: Path
) -> None:
    shutil.copytree(made.path, tmp_path / "broken", symlinks=True, ignore=shutil.ignore_patterns("own"))
    broken = BundleFolder(made.bundle, tmp_path / "broken", "digest", is_cache_hit=True)
    tool = broken.path / "node_modules" / "tool"
    tool.write_bytes(tool.read_bytes().replace(b"libc.so.6\0", b"libx.so.6\0"))
    box = await bench.box(mounts=(broken.mount,))
    with pytest.raises(AgentInstallFailed, match=r"libx\.so\.6"):
        await bundles.open_in(box, broken, None)


@pytest.mark.docker
@pytest.mark.parametrize("bench", ["glibc"], indirect=True)
async def test_the_home_is_the_users_own_where_it_can_be_written(bench: Bench) -> None:
    box = await bench.box()
    assert await resolve_home(box, None) == "/root"
    assert await resolve_home(box, "homely") == "/home/homely"
    assert await resolve_home(box, "homeless") == FRESH_HOME
    # Twice, as after a crash; and it is the user's.
    assert await resolve_home(box, "homeless") == FRESH_HOME
    await write_private(box, f"{FRESH_HOME}/.a/b/settings", "secret", "homeless")
    assert (
        await sh(box, f"stat -c '%U %a' {FRESH_HOME} {FRESH_HOME}/.a/b/settings")
        == "homeless 700\nhomeless 600\n"
    )
    hidden = await box.run(["cat", f"{FRESH_HOME}/.a/b/settings"], user="homely")
    assert hidden.exit_code != 0


@pytest.mark.docker
@pytest.mark.parametrize("bench", ["glibc"], indirect=True)
async def test_skills_of_the_image_are_copied_and_absent_ones_are_no_error(bench: Bench) -> None:
    box = await bench.box()
    await sh(box, "mkdir -p -m 700 /skills/greet && echo hi > /skills/greet/SKILL.md")
    for source in ("/skills", "/nowhere", None):
        await copy_skills(box, source, "/home/homely/.x/skills", "homely")
    assert await sh(box, "cd /home/homely/.x && stat -c %U . skills skills/greet/SKILL.md") == "homely\n" * 3


async def test_a_local_box_has_the_bundle_mounted(
    made: BundleFolder, bundles: Bundles, tmp_path: Path
) -> None:
    async with local_bench(tmp_path / "local") as bench:
        box = await bench.box(mounts=(made.mount,))
        for user in (None, "nobody") if IS_ROOT else (None,):
            assert await bundles.open_in(box, made, user) == NATIVE
        result = await box.run(["sh", "-c", "rm -f /opt/evolve/bundle.json"])
        assert b"Read-only file system" in result.stderr
        assert await resolve_home(box, None) == "/root"
