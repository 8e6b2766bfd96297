"""`evolve run`: the request that flags and a config file make, and what follows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli import patience
from cli.events import JobEvent
from cli.progress import JobProgress
from tests.cli.conftest import Evolve
from tests.cli.fake_api import Answer, FakeApi, answer_json, job, refusal, trial

CONFIG = """
datasets:
  - name: examples
    version: "1"
    task_names: [hello-*]
  - name: other
agents:
  - {name: claude, model_name: opus, reasoning_effort: low}
  - {name: claude, model_name: sonnet}
n_attempts: 2
n_concurrent_trials: 8
max_trial_spend_usd: 25
retry: {max_retries: 1, min_wait_sec: 2}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(CONFIG)
    return str(path)


def printed(evolve: Evolve, *arguments: str) -> dict[str, Any]:
    outcome = evolve("run", *arguments, "--print-config")
    assert outcome.exit_code == 0, outcome.err
    return json.loads(outcome.out)


def test_flags_alone_make_a_body_without_defaults(evolve: Evolve) -> None:
    body = printed(
        evolve, "-d", "examples@1", "-d", "other", "-a", "codex@0.30", "-m", "gpt-6", "-m", "gpt-5"
    )
    assert body == {
        "datasets": [{"name": "examples", "version": "1"}, {"name": "other"}],
        "agents": [
            {"name": "codex", "version": "0.30", "model_name": "gpt-6"},
            {"name": "codex", "version": "0.30", "model_name": "gpt-5"},
        ],
    }


def test_every_flag_lands_in_its_field(evolve: Evolve, tmp_path: Path) -> None:
    settings = tmp_path / "settings.json"
    settings.write_text('{"theme": "dark"}')
    body = printed(
        evolve,
        *("-d", "examples", "-a", "claude", "-m", "opus", "-k", "3", "-n", "9", "-l", "5"),
        *("-i", "a*", "-i", "b*", "-x", "c*", "--job-name", "x", "--org", "acme", "-e", "docker"),
        *("--effort", "high", "--preset", "no-internet", "--ak", f"config={settings}"),
        *("--max-trial-spend", "1.5", "-r", "2", "--retry-include", "A", "--retry-exclude", "B"),
        *("--timeout-multiplier", "2", "--ve", "REWARDKIT_MODEL=gpt=6", "--ve", "REWARDKIT_JUDGE=j"),
        *("--ae", "A=b"),
    )
    assert body == {
        "datasets": [
            {"name": "examples", "task_names": ["a*", "b*"], "exclude_task_names": ["c*"], "n_tasks": 5}
        ],
        "agents": [
            {
                "name": "claude",
                "model_name": "opus",
                "reasoning_effort": "high",
                "preset": "no-internet",
                "kwargs": {"config": {"theme": "dark"}},
            }
        ],
        "job_name": "x",
        "org": "acme",
        "n_attempts": 3,
        "n_concurrent_trials": 9,
        "max_trial_spend_usd": 1.5,
        "sandbox_provider": "docker",
        "timeout_multiplier": 2.0,
        "agent_env": {"A": "b"},
        "verifier_env": {"REWARDKIT_MODEL": "gpt=6", "REWARDKIT_JUDGE": "j"},
        "retry": {"max_retries": 2, "include_exceptions": ["A"], "exclude_exceptions": ["B"]},
    }


def test_a_file_alone_is_the_body(evolve: Evolve, config: str) -> None:
    body = printed(evolve, "-c", config)
    assert body["n_attempts"] == 2
    assert body["agents"][0] == {"name": "claude", "model_name": "opus", "reasoning_effort": "low"}


def test_a_flag_overrides_its_own_field_only(evolve: Evolve, config: str) -> None:
    body = printed(evolve, "-c", config, "-k", "5", "-r", "0", "-l", "1", "--effort", "max")
    assert (body["n_attempts"], body["n_concurrent_trials"]) == (5, 8)
    assert body["retry"] == {"max_retries": 0, "min_wait_sec": 2}
    assert body["datasets"] == [
        {"name": "examples", "version": "1", "task_names": ["hello-*"], "n_tasks": 1},
        {"name": "other", "n_tasks": 1},
    ]
    assert [arm["reasoning_effort"] for arm in body["agents"]] == ["max", "max"]


def test_named_datasets_replace_the_files(evolve: Evolve, config: str) -> None:
    assert printed(evolve, "-c", config, "-d", "new")["datasets"] == [{"name": "new"}]


def test_a_model_alone_goes_to_the_files_agent(evolve: Evolve, config: str) -> None:
    agents = printed(evolve, "-c", config, "-m", "haiku")["agents"]
    assert agents == [{"name": "claude", "model_name": "haiku", "reasoning_effort": "low"}]


def test_every_agent_runs_with_every_model(evolve: Evolve) -> None:
    agents = ("-a", "oracle", "-a", "claude@2.1.197", "-a", "acme-cli", "-m", "x", "-m", "y")
    assert printed(evolve, "-d", "examples", *agents)["agents"] == [
        {"name": "oracle"},
        {"name": "claude", "version": "2.1.197", "model_name": "x"},
        {"name": "claude", "version": "2.1.197", "model_name": "y"},
        {"name": "acme-cli", "model_name": "x"},
        {"name": "acme-cli", "model_name": "y"},
    ]


def test_the_clients_other_word_for_off_is_known(evolve: Evolve) -> None:
    body = printed(evolve, "-d", "examples", "-a", "qwen", "-m", "qwen3.8-max", "--effort", "no-thinking")
    assert body["agents"][0]["reasoning_effort"] == "off"


def test_an_agent_replaces_the_files_arms(evolve: Evolve, config: str) -> None:
    assert printed(evolve, "-c", config, "-a", "oracle")["agents"] == [{"name": "oracle"}]


@pytest.mark.parametrize("agent", ["oracle", "nop"])
def test_agents_that_call_no_model_need_none(evolve: Evolve, agent: str) -> None:
    assert printed(evolve, "-d", "examples", "-a", agent)["agents"] == [{"name": agent}]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("-a", "oracle"), "-d"),
        (("-d", "examples"), "-a"),
        (("-d", "examples", "-a", "claude"), "-m"),
        (("-d", "examples", "-m", "opus"), "-m"),
        (("-d", "examples@", "-a", "oracle"), "-d"),
        (("-d", "@1", "-a", "oracle"), "-d"),
        (("-d", "examples", "-a", "oracle", "-k", "0"), "-k"),
        (("-d", "examples", "-a", "oracle", "-n", "151"), "-n"),
        (("-d", "examples", "-a", "oracle", "--max-trial-spend", "nan"), "--max-trial-spend"),
        (("-d", "examples", "-a", "oracle", "--ak", "model=x"), "--ak"),
        (("-d", "examples", "-a", "oracle", "--ve", "REWARDKIT_MODEL"), "--ve"),
        (("-d", "examples", "-a", "oracle", "-a", "claude@"), "-a"),
        (("-c", "/nowhere.yaml"), "-c"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_flags_are_usage_errors_that_name_the_flag(
    evolve: Evolve, arguments: tuple[str, ...], named: str
) -> None:
    outcome = evolve("run", *arguments, "--print-config")
    assert outcome.exit_code == 2
    assert named in outcome.err


@pytest.mark.parametrize("content", ["- a", "a: [", "datasets: [{name: x, version: 2026-01-01}]", ""])
def test_a_config_file_that_is_no_job_is_a_usage_error(evolve: Evolve, tmp_path: Path, content: str) -> None:
    (tmp_path / "job.yaml").write_text(content)
    assert evolve("run", "-c", str(tmp_path / "job.yaml"), "-a", "oracle", "--print-config").exit_code == 2


@pytest.mark.parametrize(
    "flags",
    [
        ("--analyze",),
        ("--analyze-model", "x"),
        ("--secret", "A"),
        ("--secret-inline", "A:direct=hush"),
        ("--skills", "./folder"),
        ("--skill", "./folder"),
        ("--system-log",),
    ],
    ids=lambda flags: flags[0],
)
def test_flags_of_later_releases_refuse_by_name(api: FakeApi, evolve: Evolve, flags: tuple[str, ...]) -> None:
    outcome = evolve("run", "-d", "examples", "-a", "oracle", *flags)
    assert outcome.exit_code == 1
    assert flags[0].replace("--skill", "--skills").replace("--skillss", "--skills") in outcome.err
    assert "hush" not in outcome.err
    assert api.requests == []


@pytest.mark.parametrize("command", [("run",), ("job", "start")], ids=" ".join)
def test_a_started_job_prints_its_id(api: FakeApi, evolve: Evolve, command: tuple[str, ...]) -> None:
    outcome = evolve(*command, "-d", "examples", "-a", "oracle")
    assert (outcome.exit_code, outcome.out, outcome.err) == (0, "job-1\n", "")
    (request,) = api.asked("POST", "/api/jobs")
    assert request.json == {"datasets": [{"name": "examples"}], "agents": [{"name": "oracle"}]}


def test_a_start_whose_answer_is_lost_is_sent_again_under_the_same_key(api: FakeApi, evolve: Evolve) -> None:
    api.script("POST", "/api/jobs", Answer(cut=True))
    assert evolve("run", "-d", "examples", "-a", "oracle").out == "job-1\n"
    first, second = api.asked("POST", "/api/jobs")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] != ""


def test_a_refused_start_exits_1(api: FakeApi, evolve: Evolve) -> None:
    api.script("POST", "/api/jobs", refusal(404, "dataset_not_found", "No dataset examples."))
    outcome = evolve("run", "-d", "examples", "-a", "oracle", "--watch")
    assert (outcome.exit_code, outcome.err) == (1, "error: No dataset examples. (dataset_not_found)\n")


EVENTS: list[tuple[int, str, dict[str, Any]]] = [
    (
        1,
        "job.created",
        {"trial_count": 2, "task_count": 2, "sandbox_provider": "local", "n_concurrent_trials": 4},
    ),
    (2, "job.running", {"job_id": "job-1"}),
    (3, "trial.running", {"trial_id": "t1", "task_name": "hello-file"}),
    (4, "trial.spend", {"trial_id": "t1", "task_name": "hello-file", "live_spent_usd": 0.5}),
    (5, "trial.scoring", {"trial_id": "t1"}),
    (6, "trial.settled", {"trial_id": "t1", "task_name": "hello-file", "status": "SCORED", "reward": 0}),
    (7, "trial.running", {"trial_id": "t2", "task_name": "c-build"}),
    (
        8,
        "trial.settled",
        {
            "trial_id": "t2",
            "task_name": "c-build",
            "status": "INFRASTRUCTURE_ERROR",
            "exception_type": "InfrastructureError",
            "exception_message": "box\ngone",
        },
    ),
    (9, "job.completed", {"job_id": "job-1"}),
]


@pytest.fixture
def finished(api: FakeApi) -> FakeApi:
    api.jobs = {"job-1": job("job-1")}
    api.events = {"job-1": EVENTS}
    api.trials = {
        "t1": trial("t1", reward=0.0),
        "t2": trial("t2", "c-build", status="INFRASTRUCTURE_ERROR", reward=None),
    }
    return api


def test_a_watch_in_a_pipe_tells_each_event_and_ends_with_the_results(
    finished: FakeApi, evolve: Evolve
) -> None:
    outcome = evolve("run", "-d", "examples", "-a", "oracle", "--watch")
    assert outcome.exit_code == 0
    lines = outcome.out.splitlines()
    assert lines[:8] == [
        "job job-1: 2 trials of 2 tasks on local, 4 at a time",
        "[0/2]  job running",
        "[0/2]  started    hello-file  t1",
        "[0/2]  scoring    hello-file  t1",
        "[1/2]  settled    hello-file  t1  SCORED  reward 0.0",
        "[1/2]  started    c-build  t2",
        "[2/2]  settled    c-build  t2  INFRASTRUCTURE_ERROR  InfrastructureError: box\\ngone",
        "[2/2]  job completed",
    ]
    assert outcome.rows[-3:] == [
        ["task", "oracle"],
        ["hello-file", "0.0"],
        ["c-build", "INFRASTRUCTURE_ERROR"],
    ]


def test_a_wait_is_a_line_of_its_own() -> None:
    data = {"trial_id": "t1", "task_name": "hello-file", "waiting_for": "429: try later", "since": "now"}
    line = JobProgress(job("job-1")).apply(JobEvent(2, "trial.waiting", data))
    assert line is not None
    assert line.endswith("waiting    hello-file  t1  for 429: try later")


def test_results_are_waited_for_when_the_server_restarts_after_the_last_event(
    finished: FakeApi, evolve: Evolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "FIRST_WAIT_SEC", 0.0)
    finished.script("GET", "/api/jobs/job-1/trials", refusal(503, "internal_error", "starting"))
    outcome = evolve("job", "watch", "job-1", "-q")
    assert outcome.rows[-2] == ["hello-file", "0.0"]
    assert outcome.err == "waiting for the server: starting\n"


def test_a_quiet_watch_prints_the_final_block_only(finished: FakeApi, evolve: Evolve) -> None:
    out = evolve("job", "watch", "job-1", "-q").out
    assert out.startswith("job\tjob-1\n")
    assert "settled" not in out


def test_a_watch_as_json_is_one_object_a_line(finished: FakeApi, evolve: Evolve) -> None:
    lines = [json.loads(line) for line in evolve("job", "watch", "job-1", "--json").out.splitlines()]
    assert [line["type"] for line in lines[:-1]] == [kind for _, kind, _ in EVENTS]
    assert lines[-1] == {"seq": None, "type": "job", "data": finished.jobs["job-1"]}


def test_a_cancelled_job_makes_its_watch_exit_1(finished: FakeApi, evolve: Evolve) -> None:
    finished.jobs["job-1"]["status"] = "CANCELLED"
    finished.events["job-1"] = [*EVENTS[:2], (3, "job.cancelled", {"job_id": "job-1", "cancelled_trials": 2})]
    assert evolve("job", "watch", "job-1").exit_code == 1


def test_several_attempts_show_the_mean_and_how_many_were_scored(finished: FakeApi, evolve: Evolve) -> None:
    finished.trials["t3"] = trial("t3", attempt=2, reward=1.0)
    finished.trials["t4"] = trial("t4", "c-build", attempt=2, reward=1.0)
    out = evolve("job", "watch", "job-1", "-q").rows
    assert out[-2:] == [["hello-file", "0.5"], ["c-build", "1.0 (1/2 scored)"]]


def test_a_retried_trial_counts_as_unsettled_again(finished: FakeApi, evolve: Evolve) -> None:
    settled = {"trial_id": "t1", "task_name": "hello-file", "status": "INFRASTRUCTURE_ERROR"}
    retrying = {
        "trial_id": "t1",
        "task_name": "hello-file",
        "retry": 1,
        "max_retries": 2,
        "delay_sec": 1.0,
        "exception_type": "InfrastructureError",
    }
    finished.events["job-1"] = [
        *EVENTS[:3],
        (4, "trial.settled", settled),
        (5, "trial.retrying", retrying),
        EVENTS[-1],
    ]
    lines = evolve("job", "watch", "job-1").out.splitlines()
    assert lines[3].startswith("[1/2]  settled")
    assert lines[4] == "[0/2]  retrying   hello-file  t1  1 of 2 in 1.0 s  InfrastructureError"


def test_long_options_say_the_same_as_short_ones(evolve: Evolve, config: str) -> None:
    short = printed(
        evolve,
        *("-d", "examples", "-a", "claude", "-m", "opus", "-k", "3", "-n", "9", "-l", "5"),
        *("-i", "a*", "-x", "c*", "-e", "docker"),
    )
    long = printed(
        evolve,
        *("--dataset", "examples", "--agent", "claude", "--model", "opus", "--n-attempts", "3"),
        *("--n-concurrent", "9", "--n-tasks", "5", "--include", "a*", "--exclude", "c*"),
        *("--provider", "docker"),
    )
    assert long == short
    assert printed(evolve, "--config", config) == printed(evolve, "-c", config)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    made = tmp_path / "My Tasks"
    (made / "one").mkdir(parents=True)
    (made / "one" / "task.toml").write_text("")
    return made


def test_a_directory_is_published_under_a_label_of_its_content_and_run(
    api: FakeApi, evolve: Evolve, tasks: Path
) -> None:
    [selector] = printed(evolve, "--dir", str(tasks), "-a", "nop")["datasets"]
    assert selector["name"] == "my-tasks"
    imported = {"id": "import-1", "name": "my-tasks", "version": selector["version"], "status": "COMPLETED"}
    api.imports = {"import-1": [imported]}
    failure = {"code": "image_build_failed", "step": "image-build", "message": "no base"}
    detail = {
        "selected_version": {"state": "READY"},
        "failed_tasks": [{"task_name": "x", "failure": failure}],
    }
    api.script("GET", "/api/datasets/my-tasks", refusal(404, "dataset_not_found", "No."), answer_json(detail))
    outcome = evolve("run", "--dir", str(tasks), "-a", "nop")
    assert (outcome.exit_code, outcome.out) == (0, "job-1\n")
    assert "FAILED  x  image_build_failed at image-build: no base" in outcome.err
    assert len(api.asked("POST", "/api/datasets/publish")) == 1
    assert api.asked("POST", "/api/jobs")[0].json["datasets"] == [selector]


def test_the_same_content_is_not_published_again_and_other_content_is_another_version(
    api: FakeApi, evolve: Evolve, tasks: Path
) -> None:
    api.script("GET", "/api/datasets/my-tasks", answer_json({"selected_version": {"state": "READY"}}))
    outcome = evolve("run", "--dir", str(tasks), "-a", "nop")
    assert "is published already" in outcome.err
    assert api.asked("POST", "/api/datasets/publish") == []
    [first] = api.asked("POST", "/api/jobs")[0].json["datasets"]
    (tasks / "one" / "task.toml").write_text("# changed")
    [second] = printed(evolve, "--dir", str(tasks), "-a", "nop")["datasets"]
    assert second["version"] != first["version"]
    assert evolve("run", "--dir", str(tasks / "absent"), "-a", "nop").exit_code == 1
