"""What a download's records say, file by file against golden folders, and how kept files are sorted out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from domain import layouts
from domain.layout_records import JobGroupSums, job_result, trial_config, trial_lock, trial_result, verdict_of
from domain.stats import GroupSums, pass_at_k
from domain.trials import StepResult, VerifierResult
from domain.vocabulary import TrialStatus
from tests.domain.job_factory import make_version, plan_trials
from tests.domain.layout_factory import (
    FAILED,
    GOLDEN,
    SCORED,
    START,
    make_job,
    make_trial,
    make_trials,
    rendered,
)


def test_the_folder_is_as_the_golden_one_is() -> None:
    golden = {
        path.relative_to(GOLDEN).as_posix(): path.read_bytes() for path in GOLDEN.rglob("*") if path.is_file()
    }
    assert rendered() == golden


def test_rendering_twice_gives_the_same_bytes() -> None:
    assert rendered() == rendered()


def test_the_job_lock_repeats_each_trials_own_lock() -> None:
    files = rendered()
    own = [json.loads(files[path]) for path in sorted(files) if path.endswith("/lock.json")]
    assert json.loads(files["lock.json"])["trials"] == own


def test_pass_at_k_and_means_are_those_that_the_api_answers() -> None:
    planned = plan_trials(make_version("alpha"), n_attempts=4)
    outcomes = (1.0, 0.0, 1.0, 0.0)
    verdicts = [{**SCORED, "verifier_result": {"rewards": {"reward": reward}}} for reward in outcomes]
    trials = [
        make_trial(slot, planned.plan, TrialStatus.SCORED, verdict)
        for slot, verdict in zip(planned.slots(), verdicts, strict=True)
    ]
    job = make_job(planned.plan, trials)
    sums = GroupSums(n_total=4, n_settled=4, n_rewarded=4, reward_sum=2.0)
    points = pass_at_k([(4, 2)])
    group = JobGroupSums(sums, points)
    stats = job_result(replace(job, groups={"oracle__demo": group}), map(verdict_of, trials))["stats"]
    entry = stats["evals"]["oracle__demo"]
    api = sums.wire(points)
    assert {name: entry[name] for name in api} == api
    assert entry["pass_at_k"] == {"2": pytest.approx(5 / 6), "4": 1.0}
    assert [len(names) for names in entry["reward_stats"]["reward"].values()] == [2, 2]


def test_a_cost_is_stated_only_once_it_is_final() -> None:
    planned = plan_trials(make_version("alpha"))
    slot = next(planned.slots())
    provisional = trial_result(planned.plan, make_trial(slot, planned.plan, TrialStatus.SCORED, FAILED))
    assert provisional["agent_result"]["cost_usd"] is None
    assert provisional["agent_result"]["n_input_tokens"] == 10
    assert provisional["x_evolve"]["spentUsd"] == 0.25
    assert provisional["x_evolve"]["spendSource"] == "measured_provisional"
    measured = make_trial(slot, planned.plan, TrialStatus.SCORED, {**FAILED, "spend_source": "measured"})
    assert trial_result(planned.plan, measured)["agent_result"]["cost_usd"] == 0.25


def test_unmeasured_spend_is_null_never_zero() -> None:
    result = make_result({})
    assert result["agent_result"] is None
    assert result["x_evolve"]["spentUsd"] is None


def make_result(document: dict[str, Any]) -> dict[str, Any]:
    planned = plan_trials(make_version("alpha"))
    trial = make_trial(next(planned.slots()), planned.plan, TrialStatus.CANCELLED, document)
    return trial_result(planned.plan, trial)


def test_everything_of_ours_stands_under_x_evolve() -> None:
    planned = plan_trials(make_version("alpha"))
    trial = make_trial(next(planned.slots()), planned.plan, TrialStatus.SCORED, SCORED)
    known = {
        "schema_version", "id", "task_name", "trial_name", "trial_uri", "task_id", "source", "task_checksum",
        "config", "agent_info", "agent_result", "verifier_result", "verifier_environment_mode",
        "exception_info", "started_at", "finished_at", "environment_setup", "agent_setup",
        "agent_execution", "verifier", "step_results", "x_evolve",
    }  # fmt: skip
    assert set(trial_result(planned.plan, trial)) == known


def test_local_is_never_passed_off_as_docker() -> None:
    for provider, environment in (
        ("local", {"import_path": "x_evolve:local"}),
        ("docker", {"type": "docker"}),
    ):
        planned = plan_trials(make_version("alpha"), sandbox_provider=provider)
        trial = make_trial(next(planned.slots()), planned.plan, TrialStatus.SCORED, SCORED)
        assert trial_config(planned.plan, trial)["environment"] == environment
        is_replaced = trial_result(planned.plan, trial)["x_evolve"]["base_image_replaced"]
        assert is_replaced is (provider == "local")


def test_a_task_without_a_digest_has_no_lock() -> None:
    planned = plan_trials(make_version("alpha"))
    trial = make_trial(next(planned.slots()), planned.plan, TrialStatus.SCORED, SCORED)
    without = replace(trial, task=replace(trial.task, digest=None))
    assert trial_lock(planned.plan, without) is None
    assert "lock.json" not in layouts.trial_records(planned.plan, without, layouts.kept_names(()), ())


def test_a_kept_reward_file_is_not_written_over() -> None:
    planned = plan_trials(make_version("alpha"))
    trial = make_trials(plan_trials())[0]
    kept = layouts.kept_names(["verifier/reward.json"])
    assert "verifier/reward.json" not in layouts.trial_records(planned.plan, trial, kept, ())
    without = layouts.trial_records(planned.plan, trial, layouts.kept_names(()), ())
    assert json.loads(without["verifier/reward.json"]) == {"reward": 1.0}


def test_no_exception_no_artifacts_no_files_of_them() -> None:
    planned = plan_trials(make_version("alpha"))
    records = layouts.trial_records(planned.plan, make_trials(plan_trials())[0], layouts.kept_names(()), ())
    assert "exception.txt" not in records
    assert "artifacts/manifest.json" not in records


@pytest.mark.parametrize(
    ("paths", "laid", "left_out"),
    [
        (["b", "a"], ("a", "b"), ()),
        (["agent/x", "agent/x/y/z"], ("agent/x",), ("agent/x/y/z: agent/x is a file",)),
        (["result.json"], (), ("result.json: the name of a record",)),
        (["agent/result.json"], ("agent/result.json",), ()),
    ],
)
def test_what_cannot_stand_in_a_folder_is_left_out_and_said(
    paths: list[str], laid: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    names = layouts.kept_names(paths)
    assert (names.laid, names.left_out) == (laid, left_out)


def test_the_exceptions_text_begins_with_its_traceback() -> None:
    exception = {"exception_type": "E", "exception_message": "why:", "exception_traceback": "Trace\n  it"}
    assert layouts.exception_text(exception) == b"Trace\n  it\nE: why:\n"
    assert layouts.exception_text({"exception_type": "E", "exception_message": None}) == b"E\n"


def test_a_log_line_never_breaks_in_two() -> None:
    event = layouts.LoggedEvent(START, "trial.settled", {"exception_message": "two\nlines"})
    assert layouts.log_line(event).count(b"\n") == 1


def test_each_scored_step_has_its_rewards_unless_its_verifier_wrote_them() -> None:
    planned = plan_trials(make_version("alpha"))
    steps = [
        StepResult(step_name=name, verifier_result=rewards and VerifierResult(rewards=rewards))
        for name, rewards in (("one", {"reward": 1.0}), ("two", {"reward": 0.5}), ("three", None))
    ]
    result = {**SCORED, "step_results": [step.model_dump(mode="json") for step in steps]}
    trial = make_trial(next(iter(planned.slots())), planned.plan, TrialStatus.SCORED, result)
    kept = layouts.kept_names({"steps/two/verifier/reward.json"})
    records = layouts.trial_records(planned.plan, trial, kept, [])
    assert json.loads(records["steps/one/verifier/reward.json"]) == {"reward": 1.0}
    assert [path for path in records if path.startswith("steps/")] == ["steps/one/verifier/reward.json"]
    assert json.loads(records["result.json"])["step_results"] == result["step_results"]
