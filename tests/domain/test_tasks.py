"""task.toml into typed tasks: what is honoured, what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from domain.errors import TaskError
from domain.task_config import NetworkPolicy
from domain.tasks import EnvValue, Task, TaskFiles, parse_task, resolve_env

FILES = frozenset({"task.toml", "instruction.md", "tests/test.sh", "environment/Dockerfile"})


def parse(toml: str | bytes = "", paths: frozenset[str] | None = FILES, **files: Any) -> Task:
    return parse_task("hello world", toml, TaskFiles(paths=paths, **files))


def refusal(toml: str | bytes = "", paths: frozenset[str] | None = FILES, **files: Any) -> str:
    with pytest.raises(TaskError) as caught:
        parse(toml, paths, **files)
    assert caught.value.code == "task_parse_failed"
    return caught.value.message


def test_an_empty_file_is_a_task_of_defaults() -> None:
    task = parse("", instruction="Grüße\n".encode())
    assert (task.name, task.declared_name, task.instruction) == ("hello world", None, "Grüße\n")
    assert (task.agent_timeout_sec, task.verifier_timeout_sec, task.build_timeout_sec) == (3600, 600, 600)
    assert (task.agent_user, task.network, task.verifier_mode) == (None, NetworkPolicy(), "shared")
    assert (task.cpus, task.memory_mb, task.storage_mb, task.gpus) == (None, None, None, 0)


def test_a_full_file_is_resolved() -> None:
    task = parse(
        """
        schema_version = "1.3"
        artifacts = [
            "/app/out.json",
            {source = "logs", destination = "l", exclude = ["*.tmp"], service = "main"},
        ]
        [task]
        name = "acme/hello"
        description = "d"
        authors = [{name = "A", email = "a@example.org"}]
        [agent]
        timeout_sec = 90
        user = "dev"
        [verifier]
        timeout_sec = 12.5
        user = "root"
        [verifier.env]
        MODE = "ci"
        [environment]
        network_mode = "no-network"
        cpus = 1.0
        memory_mb = 2048
        storage_mb = 10240
        gpus = 1
        gpu_types = ["H100"]
        workdir = "/srv"
        docker_image = "ghcr.io:443/acme/x:1.2"
        skills_dir = "/skills"
        [environment.env]
        A = "1"
        [environment.healthcheck]
        command = "true"
        [[environment.mcp_servers]]
        name = "m"
        transport = "http"
        url = "http://m:8000/mcp"
        [solution.env]
        S = "s"
        """
    )
    assert (task.declared_name, task.schema_version, task.description) == ("acme/hello", "1.3", "d")
    assert (task.agent_timeout_sec, task.agent_user, task.verifier_timeout_sec) == (90, "dev", 12.5)
    assert (task.cpus, task.memory_mb, task.storage_mb) == (1.0, 2048, 10240)
    assert (task.gpus, task.gpu_types, task.workdir) == (1, ("H100",), "/srv")
    assert task.network == task.agent_network == task.verifier_network == NetworkPolicy(mode="no-network")
    assert [(entry.source, entry.destination, entry.exclude, entry.service) for entry in task.artifacts] == [
        ("/app/out.json", None, (), None),
        ("logs", "l", ("*.tmp",), "main"),
    ]
    assert task.mcp_servers[0].transport == "streamable-http"
    assert task.healthcheck is not None
    assert (task.healthcheck.interval_sec, task.healthcheck.retries) == (5, 3)
    assert (task.env_literals, resolve_env(task.verifier_env)) == ({"A": "1"}, {"MODE": "ci"})
    assert task == Task.model_validate_json(task.model_dump_json())


def test_old_spellings_are_read() -> None:
    task = parse('version = "1.0"\n[environment]\nmemory = "1g"\nstorage = "0.5G"\nallow_internet = false')
    assert (task.schema_version, task.memory_mb, task.storage_mb) == ("1.0", 1024, 512)
    assert task.network.mode == "no-network"


def test_network_mode_beats_allow_internet() -> None:
    task = parse('[environment]\nallow_internet = false\nnetwork_mode = "public"')
    assert task.network.mode == "public"


def test_allowlist_hosts_are_normalised() -> None:
    hosts = '["Example.ORG.", "*.pypi.org", "10.0.0.0/8", "2001:DB8::1"]'
    task = parse(f'[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = {hosts}')
    assert task.network.allowed_hosts == ("example.org", "*.pypi.org", "10.0.0.0/8", "2001:db8::1")


def test_unknown_keys_are_reported_and_metadata_is_free() -> None:
    task = parse(
        'top = 1\n[metadata]\nx = [1]\n[environment]\nbase_image = "x"\n[[environment.mcp_servers]]\n'
        'name = "m"\nurl = "http://m"\nodd = 1'
    )
    assert task.unknown_keys == ("environment.base_image", "environment.mcp_servers[0].odd", "top")


def test_byte_order_mark_crlf_and_names_without_org_are_accepted() -> None:
    text = b'\xef\xbb\xbf[task]\r\nname = "plain"\r\nauthors = ["Ann"]\r\n'
    assert parse(text).declared_name == "plain"


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "-inf", "true", '"soon"', "2147483.648", "[]"])
@pytest.mark.parametrize(
    "key", ["agent.timeout_sec", "verifier.timeout_sec", "environment.build_timeout_sec"]
)
def test_a_timeout_is_finite_and_positive(key: str, value: str) -> None:
    assert f"{key}: " in refusal(f"{key} = {value}")


def test_a_numeric_text_is_a_timeout_as_in_harbor() -> None:
    assert parse('agent.timeout_sec = "60"').agent_timeout_sec == 60


@pytest.mark.parametrize(
    ("toml", "told"),
    [
        ("environment.cpus = 0", "environment.cpus: Input should be greater than 0 (got 0)"),
        ("environment.cpus = nan", "environment.cpus: "),
        ("environment.memory_mb = -1", "environment.memory_mb: "),
        ("environment.storage_mb = 0", "environment.storage_mb: "),
        ("environment.gpus = -1", "environment.gpus: "),
        ('environment.memory = "2 GiB"', "memory must be text like"),
        ("environment.memory = 2048", "memory must be text like"),
        ('environment.memory = "2G"\nenvironment.memory_mb = 4096', "memory = '2G' (2048 MB) contradicts"),
        ('environment.os = "macos"', "environment.os: "),
        ('environment.network_mode = "maybe"', "environment.network_mode: "),
        ('environment.allowed_hosts = ["a.org"]', "allowed_hosts is accepted with"),
        ('environment.network_mode = "public"\nenvironment.allowed_hosts = ["a.org"]', "allowed_hosts is"),
        (
            'environment.network_mode = "allowlist"\nenvironment.allowed_hosts = ["https://a.org"]',
            "no URLs, ports or paths",
        ),
        ('environment.network_mode = "allowlist"\nenvironment.allowed_hosts = [""]', "no host name"),
        ('environment.workdir = "app"', "workdir must be an absolute path"),
        ('environment.docker_image = "python"', "not pinned"),
        ('environment.docker_image = "host:5000/python"', "not pinned"),
        ('environment.docker_image = "python:latest"', "not pinned"),
        ("environment.env.A = 1", "environment.env.A: "),
        ('environment.env.A = "Bearer ${T}"', "[environment.env].A: a template must be the whole value"),
        ('environment.env."A B" = "x"', "no environment variable name"),
        ('environment.env.A = "a\\u0000b"', "NUL"),
        ('agent.user = "a:b"', "agent.user: "),
        ("agent.user = true", "agent.user: "),
        ("agent.load_trajectory = true", "load_trajectory is not supported"),
        ('verifier.user = "nobody"', "[verifier].user: 'nobody'"),
        ('verifier.network_mode = "no-network"', "[verifier].network_mode: "),
        (
            'verifier.environment_mode = "shared"\nverifier.environment.cpus = 1',
            'environment_mode = "shared" contradicts',
        ),
        ('artifacts = "/app/x"', "artifacts: Input should be a list (got '/app/x')"),
        ('artifacts = ["../x"]', "must not contain '..'"),
        ('artifacts = ["/app/../../x"]', "must not contain '..'"),
        ('artifacts = [""]', "artifacts[0].source: "),
        ('artifacts = [{source = "/x", destination = "/y"}]', "artifacts[0].destination: "),
        ('artifacts = [{source = "/x", destination = "manifest.json"}]', "reserved"),
        ('artifacts = [{source = "x", service = "db"}]', "must be an absolute path"),
        ("version = 1.0", "schema_version: "),
        ("steps = [{name = 'a'}, {name = 'A'}]", "named twice"),
        ("steps = [{name = '../x'}]", "steps[0].name: "),
        ("[[environment.mcp_servers]]\nname = 'm'", "url is required"),
        ("[[environment.mcp_servers]]\nname = 'm'\nurl = 'http://u:p@h/'", "no credential"),
        ("not toml", "task.toml: not TOML"),
        (b"\xff", "task.toml: not UTF-8 (byte 0)"),
        (b'[metadata]\na = [{b = "x\\u0000"}]', "task.toml: holds a NUL character"),
    ],
)
def test_what_is_malformed_is_refused_by_its_name(toml: str | bytes, told: str) -> None:
    assert told in refusal(toml)


def test_a_refusal_never_shows_an_environment_value() -> None:
    assert "hunter2" not in refusal('environment.env = {A = ["hunter2"]}\nenvironment.cpus = 0')


@pytest.mark.parametrize(
    "image", ["a:1", "h:5000/a:1", "a@sha256:" + "0" * 64, "a:latest@sha256:" + "0" * 64]
)
def test_a_pinned_image_is_accepted_without_a_dockerfile(image: str) -> None:
    task = parse(f'environment.docker_image = "{image}"', FILES - {"environment/Dockerfile"})
    assert task.docker_image == image


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("instruction.md", "instruction.md: missing"),
        ("tests/test.sh", "tests/test.sh: missing"),
        ("environment/Dockerfile", "environment: needs environment/Dockerfile"),
    ],
)
def test_a_missing_file_is_named(missing: str, told: str) -> None:
    assert told in refusal("", FILES - {missing})


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"steps/b/instruction.md"}, "steps/a: declared"),
        ({"steps/a/instruction.md", "steps/b/instruction.md"}, "steps/b: the directory is not declared"),
        ({"steps/a/tests/test.sh"}, "steps/a/instruction.md: missing"),
        ({"steps/a/instruction.md"}, "steps/a/tests/test.sh: missing"),
    ],
)
def test_steps_and_their_directories_agree_both_ways(extra: set[str], told: str) -> None:
    assert told in refusal("steps = [{name = 'a'}]", frozenset({"environment/Dockerfile"} | extra))


def test_step_directories_need_steps() -> None:
    assert "declares no [[steps]]" in refusal("", FILES | {"steps/a/instruction.md"})


def test_file_facts_come_from_the_listing() -> None:
    more = {"solution/solve.sh", "pre_artifacts.sh", "trajectory.json", "environment/docker-compose.yaml"}
    task = parse("", FILES | more)
    assert (task.has_solution, task.has_pre_artifacts, task.has_trajectory, task.has_compose) == (True,) * 4
    assert not parse("", FILES | {"tests/trajectory.json"}).has_trajectory


def test_a_tests_dockerfile_that_is_never_built_is_noted() -> None:
    paths = FILES | {"tests/Dockerfile"}
    assert [note.code for note in parse("", paths).notes] == ["tests_dockerfile_not_built"]
    assert parse('verifier.environment_mode = "separate"', paths).notes == ()


def test_templates_keep_their_variable_and_default() -> None:
    task = parse('[environment.env]\nA = "${TOKEN}"\nB = "${LEVEL:-info}"\nC = "${E:-}"\nD = "$HOME {x}"')
    assert task.env == {
        "A": EnvValue(variable="TOKEN"),
        "B": EnvValue(variable="LEVEL", default="info"),
        "C": EnvValue(variable="E", default=""),
        "D": EnvValue(literal="$HOME {x}"),
    }
    assert task.env_literals == {"D": "$HOME {x}"}
    assert resolve_env(task.env) == {"B": "info", "C": "", "D": "$HOME {x}"}


def test_a_separate_verifier_has_its_own_network() -> None:
    separate = '[verifier]\nenvironment_mode = "separate"\n'
    environment = '[environment]\nnetwork_mode = "no-network"\n'
    assert parse(separate + environment).verifier_network.mode == "no-network"
    assert parse(separate + 'network_mode = "public"\n' + environment).verifier_network.mode == "public"
    own = parse(environment + '[verifier.environment]\nnetwork_mode = "public"\n')
    assert (own.verifier_mode, own.verifier_network.mode) == ("separate", "public")


def test_run_instructions_of_a_dockerfile_are_seen() -> None:
    assert parse(dockerfile=b"FROM x\nrun true\n").has_run_instructions
    hidden = b"FROM x\nCOPY <<EOF /a\nRUN not an instruction\nEOF\nENV A=b \\\n# note\n RUN=c\n# RUN x\n"
    assert not parse(dockerfile=hidden).has_run_instructions


def test_a_group_in_the_dockerfiles_user_is_refused() -> None:
    assert "USER app:app" in refusal(dockerfile=b"FROM x\nUSER app:app\n")


def test_an_instruction_that_is_not_utf8_is_refused() -> None:
    assert "instruction.md: not UTF-8 (byte 1)" in refusal(instruction=b"a\xff")
    assert "instruction.md: holds a NUL character (byte 1)" in refusal(instruction=b"a\0")
