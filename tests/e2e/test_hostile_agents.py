"""Agents and tests that misbehave, on real boxes: each trial ends as the table says, and nothing is left."""

from __future__ import annotations

import gzip
import os
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.activities.local_bench import has_groups, leftovers
from tests.activities.test_archives import Entry, entry, link, tar_bytes
from tests.cli.stack_harness import temporary_stack, wait_until
from tests.e2e.hostile_tasks import REFUSED, SLOW, TASKS, HostileTask
from tests.factories import tar_gz
from tests.running_platform import OWN_SOURCE, RunningPlatform

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("hostile"), pytest.mark.timeout(600)]

# The two cores are shared with whatever else is tested.
CONCURRENCY = 3
BOMB_BYTES = 64 * 1024 * 1024
# What reaches the importer, is refused there by name, and must leave nothing.
ARCHIVES: dict[str, tuple[list[Entry], str]] = {
    "climbs": ([entry("../evil", b"x")], "climbs out"),
    "absolute": ([entry("/etc/evil", b"x")], "absolute path"),
    "symlink": ([link("dir", "real"), entry("dir/evil", b"x")], "in the archive twice"),
    "hardlink": ([link("b", "/etc/passwd", tarfile.LNKTYPE)], "hard link"),
    "device": ([entry("dev", type=tarfile.CHRTYPE)], "a device"),
    "duplicate": ([entry("t/a", b"1"), entry("t/a", b"2")], "in the archive twice"),
    "case": ([entry("t/README", b"1"), entry("t/readme", b"2")], "differ in case"),
    "bomb": ([entry("zeros", bytes(BOMB_BYTES))], "200 times its size"),
}


@dataclass
class HostileRun:
    """One stack with one provider on which all of the table has run."""

    provider: str
    platform: RunningPlatform
    scratch: Path
    ended_import: dict[str, Any]
    trials: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def left_behind(self) -> list[str]:
        state = self.platform.stack.home / "state"
        names = [row["name"] for row in self.platform.rows("SELECT name FROM box_leases")]
        left = [f"control group {name}" for name in names if has_groups(name)]
        left += [f"container {each}" for each in self._containers(names)]
        return [*left, *leftovers(state), *map(str, self.platform.left_in_the_store().items())]

    def _containers(self, names: list[str]) -> list[str]:
        if self.provider != "docker":
            return []
        listed = subprocess.run(
            ["docker", "ps", "--all", "--format", "{{.Names}}"], check=True, capture_output=True, text=True
        )
        return sorted(set(listed.stdout.split()) & set(names))


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.docker)])
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileRun]:
    provider: str = request.param
    scratch = tmp_path_factory.mktemp("scratch")
    environment = {"EVOLVE_SANDBOX_PROVIDER": provider, "TMPDIR": str(scratch), **OWN_SOURCE}
    with temporary_stack(environment=environment) as stack:
        stack.up()
        platform = RunningPlatform(stack)
        files: dict[str, str] = {}
        for task in (*TASKS, SLOW, REFUSED):
            files |= task.tree()
        run = HostileRun(provider, platform, scratch, platform.send_archive("hostile", tar_gz(files)))
        job_id = start(run, [task.name for task in TASKS], "table")
        platform.await_job(job_id, 400)
        run.trials = {trial["task_name"]: trial for trial in platform.trials(job_id)}
        yield run
        installation = platform.rows("SELECT id FROM installation")[0]["id"]
        platform.close()
        stack.down()
        assert containers_of(installation) == []
        remove_images(installation)


def start(run: HostileRun, tasks: list[str], key: str) -> str:
    body = {
        "datasets": [{"name": "hostile", "task_names": tasks}],
        "agents": [{"name": "oracle"}],
        "n_concurrent_trials": CONCURRENCY,
    }
    return run.platform.start_job(body, key)


@pytest.mark.parametrize("task", TASKS, ids=[task.name for task in TASKS])
def test_it_ends_as_the_table_says(hostile: HostileRun, task: HostileTask) -> None:
    trial, expected = hostile.trials[task.name], task.end_on(hostile.provider)
    info = trial["exception_info"] or {"exception_type": None, "exception_message": ""}
    found = (trial["status"], trial["reward"], info["exception_type"])
    assert found == (expected.status, expected.reward, expected.exception), info
    assert expected.told in info["exception_message"]
    if trial["agent_result"] is not None:
        agent = trial["agent_result"]["metadata"]
        assert agent["timed_out"] is task.is_timeout
        assert agent["exit_code"] == task.exit_codes.get(hostile.provider, agent["exit_code"])
    assert_files(hostile, trial["id"], task)


def assert_files(hostile: HostileRun, trial_id: str, task: HostileTask) -> None:
    if not task.files:
        return
    kept = hostile.platform.trial_files(trial_id)
    for path, expected in task.files.items():
        assert path in kept, sorted(kept)
        assert (len(kept[path]) if isinstance(expected, int) else kept[path]) == expected


def test_an_artifact_outside_of_the_box_is_refused_by_name(hostile: HostileRun) -> None:
    assert hostile.ended_import["status"] == "COMPLETED"
    dataset = hostile.platform.ask("GET", "/api/datasets/hostile").json()
    [failed] = dataset["failed_tasks"]
    assert failed["task_name"] == REFUSED.name
    assert "../x" in failed["failure"]["message"]


def test_the_agent_of_a_killed_worker_runs_once_and_on(hostile: HostileRun) -> None:
    job_id = start(hostile, [SLOW.name], "slow")
    query = "SELECT 1 FROM trials WHERE job_id = $1 AND phase = 'agent'"
    wait_until(lambda: hostile.platform.rows(query, job_id), "the agent runs", 60)
    hostile.platform.stack.kill("worker")
    hostile.platform.await_job(job_id)
    [trial] = hostile.platform.trials(job_id)
    assert (trial["status"], trial["reward"]) == ("SCORED", 1.0), trial["exception_info"]
    assert_files(hostile, trial["id"], SLOW)


def test_nothing_of_it_is_left_on_the_machine(hostile: HostileRun) -> None:
    wait_until(lambda: not hostile.left_behind(), f"nothing is left: {hostile.left_behind()}", 30)


@pytest.mark.parametrize("hostile", ["local"], indirect=True)
@pytest.mark.parametrize("name", list(ARCHIVES))
def test_a_hostile_archive_fails_its_import_and_leaves_nothing(hostile: HostileRun, name: str) -> None:
    entries, told = ARCHIVES[name]
    before = traces_of_imports(hostile)
    good = entry("t/task.toml", b'schema_version = "1.3"\n')
    ended = hostile.platform.send_archive(f"archive-{name}", gzip.compress(tar_bytes(good, *entries)))
    assert ended["status"] == "FAILED"
    assert (ended["failure"]["code"], told in ended["failure"]["message"]) == ("invalid_archive", True), ended
    assert traces_of_imports(hostile) == before
    assert not os.path.exists("/etc/evil")


def traces_of_imports(hostile: HostileRun) -> dict[str, Any]:
    """What a half-done import could have written."""
    blobs = hostile.platform.stack.home / "blobs"
    return {
        "tasks": hostile.platform.rows("SELECT count(*) AS n FROM dataset_tasks")[0]["n"],
        "usable": hostile.platform.rows(
            "SELECT count(*) AS n FROM dataset_versions WHERE state NOT IN ('FAILED')"
        )[0]["n"],
        "packages": len(list(blobs.glob("tasks/*"))),
        "scratch": os.listdir(hostile.scratch),
    }


def containers_of(installation: str) -> list[str]:
    return _docker("ps", "--all", "--quiet", "--filter", f"label=evolve.installation={installation}")


def remove_images(installation: str) -> None:
    """The images and the network that an installation keeps on its engine."""
    mine = ("--quiet", "--filter", f"label=evolve.installation={installation}")
    if images := _docker("image", "ls", *mine):
        _docker("image", "rm", "--force", *set(images))
    if networks := _docker("network", "ls", *mine):
        _docker("network", "rm", *networks)


def _docker(*words: str) -> list[str]:
    try:
        done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return done.stdout.split()
