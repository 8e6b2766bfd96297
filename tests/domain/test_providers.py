"""Which provider runs a task as declared; everything else is refused with the key's name."""

from __future__ import annotations

from typing import Any

import pytest

from domain.errors import TaskError
from domain.providers import PROVIDERS, docker_capabilities, local_capabilities, provider_table
from domain.support import (
    NOT_YET,
    refuse_unrunnable,
    unenforced_sizes,
    unsupported_keys,
    verdict,
    verdicts,
)
from domain.tasks import Task, TaskFiles, parse_task
from domain.vocabulary import SandboxProvider

FILES = frozenset({"task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile"})
USER_WITHOUT_NAT = provider_table(local_capabilities(is_root=False, why_not_public="needs slirp4netns"))


def task(toml: str = "", extra: tuple[str, ...] = (), **files: Any) -> Task:
    return parse_task("t", toml, TaskFiles(paths=FILES | set(extra), **files))


def reason(subject: Task, provider: str, table: Any = PROVIDERS) -> str | None:
    return verdict(subject, table[SandboxProvider(provider)]).reason


def test_a_plain_task_runs_on_docker_and_local_and_the_clouds_say_not_yet() -> None:
    answers = verdicts(task('environment.network_mode = "no-network"'))
    assert {name: answer.ok for name, answer in answers.items()} == {
        "docker": True,
        "local": True,
        "e2b": False,
        "daytona": False,
        "modal": False,
    }
    assert answers["e2b"].reason == "e2b: boxes of this provider are not supported yet"
    assert answers["docker"].reason is None


def test_every_honoured_key_runs_on_docker() -> None:
    honoured = task(
        """
        agent = {user = "dev", timeout_sec = 5}
        verifier = {user = "root", env = {A = "1"}}
        solution.env = {C = "${X:-y}"}
        [environment]
        network_mode = "public"
        workdir = "/srv"
        cpus = 2
        memory_mb = 512
        storage_mb = 1024
        docker_image = "x:1"
        env = {A = "1", B = "${X:-}"}
        """
    )
    assert reason(honoured, "docker") is None


@pytest.mark.parametrize(
    ("toml", "extra", "key"),
    [
        ("verifier.collect = [{command = 'x', service = 'db'}]", (), "[[verifier.collect]].service"),
        ("artifacts = [{source = '/x', service = 'db'}]", (), "artifacts.service"),
        ("verifier.environment.network_mode = 'allowlist'", (), "[verifier].network_mode"),
        ("verifier.environment.gpus = 1", (), "[verifier.environment]"),
        ("verifier.environment.env.A = '${B}'", (), "[verifier.environment.env]"),
        ("environment.network_mode = 'allowlist'", (), "[environment].network_mode"),
        ("agent.network_mode = 'no-network'", (), "[agent].network_mode"),
        ("environment.gpus = 1", (), "[environment].gpus"),
        ("environment.tpu = {type = 'v4', topology = '2x2'}", (), "[environment.tpu]"),
        ("", ("environment/docker-compose.yaml",), "environment/docker-compose.yaml"),
        ("environment.os = 'Windows'", (), "[environment].os"),
        ("environment.env.A = '${B}'", (), "[environment.env]"),
        ("verifier.env.A = '${B}'", (), "[verifier.env]"),
        ("solution.env.A = '${B}'", (), "[solution.env]"),
    ],
)
def test_what_this_release_does_not_honour_is_refused_by_name(
    toml: str, extra: tuple[str, ...], key: str
) -> None:
    subject = task(toml, extra)
    assert [told.split(": ")[0] for told in unsupported_keys(subject)] == [key]
    assert all(
        not answer.ok and (answer.reason or "").startswith(key) for answer in verdicts(subject).values()
    )
    with pytest.raises(TaskError) as caught:
        refuse_unrunnable(subject)
    assert (caught.value.code, caught.value.message.split(": ")[0]) == ("feature_unsupported", key)


def test_what_steps_declare_of_their_own_is_looked_at_too() -> None:
    files = TaskFiles(paths=FILES | {"steps/a/instruction.md"})
    declared = "[[steps]]\nname = 'a'\nartifacts = [{source = '/x', service = 'db'}]\nverifier.env.X = '${X}'"
    told = unsupported_keys(parse_task("t", declared, files))
    assert [each.split(": ")[0] for each in told] == ["artifacts.service", "[verifier.env]"]


def test_rows_of_the_table_have_distinct_keys() -> None:
    assert len({row.key for row in NOT_YET}) == len(NOT_YET)


def test_an_agents_network_that_says_the_same_is_honoured() -> None:
    same = "agent.network_mode = 'no-network'\nenvironment.network_mode = 'no-network'"
    assert reason(task(same), "docker") is None


def test_local_refuses_a_pinned_image_because_it_has_its_own_files() -> None:
    pinned = task("environment.docker_image = 'x:1'")
    assert "docker_image" in (reason(pinned, "local") or "")
    assert PROVIDERS[SandboxProvider.LOCAL].base_image_replaced


def test_local_as_a_normal_user_refuses_run_other_users_and_public_by_name() -> None:
    subject = task("agent.user = 'dev'", dockerfile=b"FROM x\nRUN y\n")
    assert reason(subject, "local") is None
    told = reason(subject, "local", USER_WITHOUT_NAT) or ""
    assert "[environment].network_mode: public on local: needs slirp4netns" in told
    assert "environment/Dockerfile: a Dockerfile's RUN needs the worker to be root" in told
    assert "[agent].user: running the agent as another user needs" in told
    with_nat = provider_table(local_capabilities(is_root=False, why_not_public=None))
    assert reason(task(), "local", with_nat) is None


@pytest.mark.parametrize(
    ("provider", "over"),
    [
        ("e2b", "environment = {cpus = 9, memory_mb = 8193, storage_mb = 20481}"),
        ("daytona", "environment = {cpus = 5, memory_mb = 8193, storage_mb = 10241}"),
        ("modal", "environment = {cpus = 17, memory_mb = 32769, storage_mb = 524289}"),
    ],
)
def test_a_size_above_a_providers_ceiling_is_refused_there(provider: str, over: str) -> None:
    told = reason(task(over), provider) or ""
    for key in ("cpus", "memory_mb", "storage_mb"):
        assert f"[environment].{key}: " in told
    assert reason(task(over), "docker") is None


def test_a_task_that_no_provider_of_this_host_runs_is_refused_with_every_reason() -> None:
    only_local = {SandboxProvider.LOCAL: USER_WITHOUT_NAT[SandboxProvider.LOCAL]}
    with pytest.raises(TaskError, match=r"no provider can run this task: local: \[environment\]") as caught:
        refuse_unrunnable(task(), only_local)
    assert caught.value.code == "provider_unsupported"


def test_sizes_that_a_host_cannot_hold_a_task_to_are_named_and_refuse_nothing() -> None:
    without_quotas = docker_capabilities(can_limit_storage=False)
    sized = task("environment = {cpus = 1, storage_mb = 100}")
    assert unenforced_sizes(sized, without_quotas) == ["storage_mb"]
    assert verdict(sized, without_quotas).ok
    assert unenforced_sizes(sized, docker_capabilities(can_limit_storage=True)) == []
    assert unenforced_sizes(task("environment = {cpus = 1}"), without_quotas) == []
    bare = local_capabilities(is_root=False, why_not_public=None, enforced=frozenset({"pids"}))
    assert unenforced_sizes(sized, bare) == ["cpus", "storage_mb"]


def test_a_size_of_a_verifiers_own_box_counts_too() -> None:
    sized = task("verifier = {environment_mode = 'separate', environment = {storage_mb = 100}}")
    assert unenforced_sizes(sized, docker_capabilities(can_limit_storage=False)) == ["storage_mb"]
