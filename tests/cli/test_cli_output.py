"""What commands print: TSV in a pipe, JSON when asked, money and unknown values as what they are."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from cli.blocks import reward_table
from cli.cells import clock, dollars, elapsed, job_money, money, one_line, reward, trial_money
from cli.client import Json
from tests.cli.conftest import Evolve
from tests.cli.fake_api import FakeApi, job, trial


def test_a_piped_list_is_tsv_under_a_header(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a"), "b": job("b", job_name="two\twords\n")}
    outcome = evolve("job", "list")
    assert outcome.exit_code == 0
    assert outcome.rows[0][:3] == ["id", "name", "status"]
    assert outcome.rows[2][:3] == ["b", "two\\twords\\n", "COMPLETED"]


def test_headers_can_be_left_out(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a")}
    assert evolve("job", "list", "--no-headers").rows[0][0] == "a"


def test_every_page_is_printed(api: FakeApi, evolve: Evolve) -> None:
    api.page_size = 2
    api.jobs = {str(number): job(str(number)) for number in range(5)}
    assert evolve("job", "list", "-q").out.split() == ["0", "1", "2", "3", "4"]
    assert [request.query.get("cursor") for request in api.asked("GET", "/api/jobs")] == [None, "2", "4"]


def test_columns_are_chosen_and_ordered(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a")}
    assert evolve("job", "list", "--columns", "status,id").rows == [["status", "id"], ["COMPLETED", "a"]]


def test_all_columns_are_more_than_the_default(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a")}
    everything = evolve("job", "list", "--columns", "all").rows[0]
    assert set(evolve("job", "list").rows[0]) < set(everything)
    assert evolve("job", "list", "--columns", "help").out.split() == everything


def test_an_unknown_column_is_a_usage_error_that_lists_them(api: FakeApi, evolve: Evolve) -> None:
    outcome = evolve("job", "list", "--columns", "id,colour")
    assert outcome.exit_code == 2
    assert "colour" in outcome.err
    assert "status" in outcome.err


def test_json_of_a_list_holds_the_full_objects(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a"), "b": job("b")}
    assert json.loads(evolve("job", "list", "--json").out) == list(api.jobs.values())


def test_list_filters_ride_on_the_request(api: FakeApi, evolve: Evolve) -> None:
    evolve("job", "list", "--scope", "org", "--search", "night shift")
    assert api.requests[-1].query == {"limit": "100", "scope": "org", "search": "night shift"}


def test_job_show_prints_facts_and_arms(api: FakeApi, evolve: Evolve) -> None:
    group = {"n_trials": 2, "n_errors": 0, "metrics": [{"mean": 0.75}], "pass_at_k": {"10": 1.0, "2": 0.9}}
    api.jobs = {"a": job("a", stats={"cost_usd": 1.5, "evals": {"oracle__examples": group}})}
    rows = evolve("job", "show", "a").rows
    assert ["status", "COMPLETED"] in rows
    assert ["spent", "$1.50"] in rows
    assert ["took", "1:05"] in rows
    assert rows[-1] == ["oracle__examples", "2", "0", "0.75", "@2 0.9  @10 1.0"]


def test_a_job_whose_base_image_was_replaced_says_so(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a", sandbox_provider="local"), "b": job("b", sandbox_provider="docker")}
    assert "own system files" in evolve("job", "show", "a").out
    assert "own system files" not in evolve("job", "show", "b").out


def test_job_trials_and_tasks_are_listed(api: FakeApi, evolve: Evolve) -> None:
    failed = {"exception_type": "InfrastructureError", "exception_message": "box gone"}
    api.trials = {
        "t1": trial("t1", attempt_phase=None),
        "t2": trial("t2", "c-build", status="INFRASTRUCTURE_ERROR", reward=None, exception_info=failed),
    }
    rows = evolve("job", "trials", "job-1", "--columns", "task,agent,status,reward,exception").rows
    assert rows[1:] == [
        ["hello-file", "oracle", "SCORED", "1.0", "-"],
        ["c-build", "oracle", "INFRASTRUCTURE_ERROR", "-", "InfrastructureError"],
    ]
    assert evolve("job", "trials", "job-1", "-q", "--status", "SCORED").out.split() == ["t1"]
    assert evolve("job", "tasks", "job-1", "--columns", "task,mean").rows[2] == ["c-build", "-"]


CODEX = {"name": "codex", "model_info": {"name": "gpt-6"}, "reasoning_effort": None}


def arm_trial(key: str, reward: float, source: str = "examples") -> Json:
    members: Json = {"agent_info": CODEX, "reward": reward, "source": source}
    return trial(f"t-{key}-{source}", x_evals_key=f"{key}__{source}", **members)


def test_arms_that_go_by_one_name_have_columns_of_their_own_in_the_table_of_rewards() -> None:
    plain, pinned = arm_trial("codex__gpt-6", 1.0), arm_trial("codex__gpt-6__0.9.1", 0.0)
    headers, rows = reward_table([trial("t1"), plain, pinned])
    assert headers == ["task", "oracle", "codex gpt-6", "codex gpt-6 (0.9.1)"]
    assert rows == [["hello-file", "1.0", "1.0", "0.0"]]


def test_an_arm_is_one_column_over_all_datasets() -> None:
    headers, rows = reward_table([arm_trial("codex__gpt-6", 1.0), arm_trial("codex__gpt-6", 0.0, "other")])
    assert headers == ["task", "codex gpt-6"]
    assert rows == [["examples/hello-file", "1.0"], ["other/hello-file", "0.0"]]


def test_a_server_that_tells_no_arms_apart_gets_a_column_a_name() -> None:
    headers, rows = reward_table([trial("t1", reward=1.0), trial("t2", reward=0.0)])
    assert (headers, rows) == (["task", "oracle"], [["hello-file", "0.5"]])


def test_trial_show_prints_every_named_reward(api: FakeApi, evolve: Evolve) -> None:
    api.trials = {"t1": trial("t1", verifier_result={"rewards": {"reward": 0.5, "speed": 0.25}}, reward=0.5)}
    rows = evolve("trial", "show", "t1").rows
    assert ["reward", "0.5"] in rows
    assert ["  speed", "0.25"] in rows


@pytest.mark.parametrize(
    ("amount", "printed"),
    [
        (0, "$0.00"),
        (12.345, "$12.35"),
        (1234567.8, "$1,234,567.80"),
        (0.0123, "$0.0123"),
        (0.0000121, "$0.000012"),
    ],
)
def test_small_amounts_never_read_as_zero(amount: float, printed: str) -> None:
    assert dollars(amount) == printed


def test_unmeasured_money_is_a_dash() -> None:
    assert money(None) == "-"
    assert money(0.5, is_lower_bound=True) == "at least $0.5000"


def test_a_job_with_unmeasured_trials_spent_at_least() -> None:
    assert job_money(job(stats={"cost_usd": 2.0, "n_unmeasured_trials": 1})) == "at least $2.00"
    assert job_money(job(stats={"cost_usd": 2.0, "n_unmeasured_judge_trials": 1})) == "at least $2.00"
    assert job_money(job(stats={"cost_usd": 2.0, "n_unmeasured_trials": 0})) == "$2.00"
    assert job_money(job(stats={})) == "-"


@pytest.mark.parametrize(
    ("members", "printed"),
    [
        ({"spend_source": "measured", "agent_result": {"cost_usd": 1.0}}, "$1.00"),
        ({"spend_source": "measured_provisional", "agent_result": {"cost_usd": 1.0}}, "at least $1.00"),
        ({"spend_source": "assumed_cap", "agent_result": {"cost_usd": 0.0}}, "-"),
        ({"live_spent_usd": 0.25}, "at least $0.2500"),
        ({}, "-"),
    ],
)
def test_a_trials_spend_reads_by_its_lane(members: Json, printed: str) -> None:
    assert trial_money(trial("t", **members)) == printed


def test_rewards_keep_zero_apart_from_nothing() -> None:
    assert [reward(value) for value in (0, 1, 0.333333, None, "x")] == ["0.0", "1.0", "0.3333", "-", "-"]


def test_clocks() -> None:
    assert [clock(seconds) for seconds in (-1, 7.9, 65, 3605)] == ["0:00", "0:07", "1:05", "1:00:05"]
    now = datetime(2026, 3, 1, 10, 0, 9, tzinfo=UTC)
    assert elapsed("2026-03-01T10:00:00Z", now=now) == "0:09"
    assert elapsed(None) == "-"


def test_control_characters_cannot_reach_a_terminal() -> None:
    assert one_line("a\x1b[31mred\tb\u2028c") == "a\\x1b[31mred\\tb\\u2028c"
