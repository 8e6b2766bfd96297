"""Where a separate verifier runs, from what the task declares."""

from __future__ import annotations

import pytest

from domain.errors import TaskError
from domain.providers import PROVIDERS, local_capabilities
from domain.support import verdict
from domain.tasks import Task, TaskFiles, parse_task
from domain.verifier_place import VerifierPlace, verifier_place
from domain.vocabulary import SandboxProvider

FILES = frozenset({"task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile"})
ENVIRONMENT = """
[environment]
cpus = 2
memory_mb = 4096
workdir = "/work"
network_mode = "no-network"
env = {MODE = "ci"}
healthcheck = {command = "true"}
"""


def task(toml: str, *extra: str, tests_dockerfile: bytes | None = None) -> Task:
    return parse_task("t", toml, TaskFiles(paths=FILES | set(extra), tests_dockerfile=tests_dockerfile))


def place(toml: str, *extra: str) -> VerifierPlace:
    return verifier_place(task(toml, *extra))


def test_without_settings_of_its_own_it_is_the_environment_again() -> None:
    copied = place(f'verifier.environment_mode = "separate"\n{ENVIRONMENT}')
    assert copied.is_tasks_image
    assert (copied.cpus, copied.memory_mb, copied.workdir) == (2, 4096, "/work")
    assert (copied.network.mode, copied.env_literals) == ("no-network", {"MODE": "ci"})
    assert copied.healthcheck is not None


def test_settings_of_its_own_stand_alone() -> None:
    own = place(f"verifier.environment = {{memory_mb = 512, env = {{A = '1'}}}}\n{ENVIRONMENT}")
    assert own.is_tasks_image
    assert (own.cpus, own.memory_mb, own.workdir, own.healthcheck) == (None, 512, None, None)
    assert (own.network.mode, own.env_literals) == ("public", {"A": "1"})


def test_the_verifiers_network_mode_overrides_either() -> None:
    toml = 'verifier = {environment_mode = "separate", network_mode = "public"}\n'
    assert place(toml + ENVIRONMENT).network.mode == "public"
    toml = 'verifier = {network_mode = "no-network", environment = {network_mode = "public"}}\n'
    assert place(toml).network.mode == "no-network"


def test_an_image_from_its_tests_takes_neither_workdir_nor_healthcheck_of_another() -> None:
    built = place(f'verifier.environment_mode = "separate"\n{ENVIRONMENT}', "tests/Dockerfile")
    assert (built.folder, built.docker_image) == ("tests", None)
    assert (built.workdir, built.healthcheck, built.memory_mb) == (None, None, 4096)


def test_a_pinned_image_comes_before_the_tests_dockerfile_and_that_before_the_tasks() -> None:
    pinned = place("verifier.environment.docker_image = 'judge:1'", "tests/Dockerfile")
    assert (pinned.docker_image, pinned.is_tasks_image) == ("judge:1", False)
    both = 'verifier.environment_mode = "separate"\nenvironment.docker_image = "work:1"'
    assert place(both).docker_image == "work:1"
    assert place(both, "tests/Dockerfile").docker_image is None


def test_an_unpinned_image_and_a_whole_root_are_refused() -> None:
    with pytest.raises(TaskError, match=r"\[verifier.environment\].docker_image: 'judge' is not pinned"):
        task("verifier.environment.docker_image = 'judge'")
    with pytest.raises(TaskError, match="a whole system"):
        task('artifacts = ["/"]\nverifier.environment_mode = "separate"')


@pytest.mark.parametrize(
    ("toml", "dockerfile", "told"),
    [
        ("verifier.environment.docker_image = 'judge:1'", None, "[verifier.environment].docker_image: "),
        ("verifier.environment_mode = 'separate'", b"FROM x\nRUN make\n", "tests/Dockerfile: "),
        ("verifier.environment.network_mode = 'public'", None, "[verifier].network_mode: public on local"),
    ],
)
def test_local_refuses_what_it_cannot_give_a_verifier(toml: str, dockerfile: bytes | None, told: str) -> None:
    local = local_capabilities(is_root=False, why_not_public="needs slirp4netns")
    extra = ("tests/Dockerfile",) if dockerfile else ()
    subject = task(f"{toml}\nenvironment.network_mode = 'no-network'", *extra, tests_dockerfile=dockerfile)
    assert told in (verdict(subject, local).reason or "")


def test_a_verifiers_size_above_a_ceiling_is_refused_there() -> None:
    told = verdict(task("verifier.environment.cpus = 9"), PROVIDERS[SandboxProvider.E2B]).reason or ""
    assert "[verifier.environment].cpus: 9 is above e2b's 8" in told
