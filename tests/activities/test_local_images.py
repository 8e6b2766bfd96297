"""A task's Dockerfile carried out on this machine's own system files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from activities.sandboxes.base import Box, ImageRequest
from activities.sandboxes.local import LocalProvider
from activities.sandboxes.local_host import LocalHost
from domain.errors import ImageBuildFailed, TaskError
from tests.activities.box_conformance import Bench, sh
from tests.activities.local_bench import image_request, local_bench


@pytest_asyncio.fixture(scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with local_bench(tmp_path_factory.mktemp("local")) as bench:
        yield bench


async def boot(bench: Bench, task: Path, *lines: str) -> Box:
    bench.image = await bench.provider.ensure_image(image_request(task, "\n".join(["FROM any", *lines])))
    assert bench.image.base_image_replaced
    return await bench.box()


def files(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


async def test_files_are_copied_as_docker_copies_them(bench: Bench, tmp_path: Path) -> None:
    files(tmp_path, "one.txt", "two.txt", "src/a", "src/deep/b", "src/skipped.log", "with space/ü")
    (tmp_path / ".dockerignore").write_text("**/*.log\n")
    (tmp_path / "src/link").symlink_to("a")
    (tmp_path / "src/a").chmod(0o750)
    box = await boot(
        bench,
        tmp_path,
        "WORKDIR /w",
        "COPY one.txt named",
        "COPY one.txt /in/",
        "COPY *.txt /all/",
        "COPY src /tree",
        "COPY src/ .",
        'COPY ["with space", "/odd name"]',
        "COPY --chmod=700 two.txt /tree/",
    )
    told = await sh(box, "cd /; find w in all tree 'odd name' ! -type d | sort")
    copied = ["w/named", "in/one.txt", "all/one.txt", "all/two.txt", "tree/a", "tree/deep/b", "tree/link"]
    copied += ["tree/two.txt", "w/a", "w/deep/b", "w/link", "odd name/ü"]
    assert told.splitlines() == sorted(copied)
    assert (
        await sh(box, "stat -c '%a %U' /tree/a /tree/two.txt; readlink /tree/link")
        == "750 root\n700 root\na\n"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("COPY absent /x", "line 2: there is no 'absent'"),
        ("COPY ../x /x", "line 2: .*leaves the task"),
        ("COPY out /x", "line 2: the link 'out' leaves the task"),
    ],
)
async def test_a_source_that_cannot_be_had_is_named(
    bench: Bench, tmp_path: Path, line: str, message: str
) -> None:
    (tmp_path / "out").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match=message):
        await boot(bench, tmp_path, line)


async def test_env_and_workdir_hold_in_the_boxes_and_layers_are_not_shared(
    bench: Bench, tmp_path: Path
) -> None:
    files(tmp_path, "data")
    box = await boot(bench, tmp_path, "ENV A=1 PATH=/own:$PATH", "WORKDIR /made/here", "COPY data .")
    other = await bench.box()
    assert box.workdir == "/made/here"
    assert (await sh(box, "echo $A; echo $PATH; cat data; rm data")).split() == [
        "1",
        "/own:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "data",
    ]
    assert await sh(other, "cat data") == "data"


async def test_one_content_is_built_once_also_by_two_workers(bench: Bench, tmp_path: Path) -> None:
    request = image_request(tmp_path, "FROM any\nWORKDIR /once\n")
    state_dir = bench.provider._host.state_dir  # type: ignore[attr-defined]
    second = LocalProvider(state_dir, state_dir / "gw" / "gateway.sock")
    found = await asyncio.gather(
        *(each.ensure_image(request) for each in (bench.provider, second) for _ in "ab")
    )
    assert len({each.id for each in found}) == 1


async def test_an_entrypoint_runs_before_the_agent_and_its_end_is_told(bench: Bench, tmp_path: Path) -> None:
    lines = ['ENTRYPOINT ["sh", "-c", "echo up >/app/up; cat /app/go; exit 3"]', "CMD echo no"]
    box = await boot(bench, tmp_path, "WORKDIR /app", "ENV X=1", *lines)
    assert await box.service_exit_code() in (None, 3)
    code = None
    while code is None:  # /app/go is not there: cat fails, and the service ends
        code = await box.service_exit_code()
    assert code == 3
    assert await box.read("/app/up") == b"up\n"


async def test_a_keep_alive_entrypoint_starts_nothing(bench: Bench, tmp_path: Path) -> None:
    box = await boot(bench, tmp_path, 'ENTRYPOINT ["tail", "-f", "/dev/null"]')
    assert len(await box.processes()) == 1
    assert await box.service_exit_code() is None  # type: ignore[attr-defined]


async def test_a_pinned_image_and_a_compose_file_are_refused(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"python:3\.12"):
        await bench.provider.ensure_image(ImageRequest("i", tmp_path, "python:3.12", "d", 60.0))
    (tmp_path / "docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(TaskError, match=r"docker-compose\.yaml"):
        await boot(bench, tmp_path)


@pytest.mark.root
class TestBuildingAsRoot:
    async def test_run_changes_any_part_of_the_system(self, bench: Bench, tmp_path: Path) -> None:
        box = await boot(
            bench,
            tmp_path,
            "ARG V=7",
            "RUN useradd -m agent && echo $V >/etc/made && echo x >/usr/local/bin/tool && rm /usr/bin/yes",
            "COPY --chown=agent . /home/agent/task",
            "USER agent",
            "WORKDIR /home/agent",
            "RUN id -un >who; echo >/tmp/mine",
        )
        assert await sh(
            box, "cat /etc/made /usr/local/bin/tool who; stat -c %U /tmp/mine task/Dockerfile task"
        ) == ("7\nx\nagent\nagent\nagent\nagent\n")
        assert (await box.run(["ls", "/usr/bin/yes"])).exit_code != 0
        assert "yes" in os.listdir("/usr/bin")
        assert await sh(box, "id -un; echo $HOME", user="agent") == "agent\n/home/agent\n"

    async def test_a_run_that_fails_is_named_with_its_output(self, bench: Bench, tmp_path: Path) -> None:
        with pytest.raises(ImageBuildFailed, match=r"line 3: RUN ended with exit code 9") as failed:
            await boot(bench, tmp_path, "RUN true", "RUN echo the reason; exit 9")
        assert "the reason" in (failed.value.excerpt or "")

    async def test_a_build_that_takes_too_long_ends(self, bench: Bench, tmp_path: Path) -> None:
        request = replace(image_request(tmp_path, "FROM any\nRUN sleep 600\n"), build_timeout_sec=2.0)
        with pytest.raises(ImageBuildFailed, match="within 2 s"):
            await bench.provider.ensure_image(request)


@pytest.mark.parametrize(
    "line", ["RUN true", "USER agent", "COPY --chown=agent a /b", "COPY a /usr/local/bin/a"]
)
async def test_what_needs_root_is_refused_to_a_user_by_name(
    bench: Bench, tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalHost, "is_root", False)
    files(tmp_path, "a")
    with pytest.raises(TaskError, match="root"):
        await boot(bench, tmp_path, line)
