from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from domain.derivation import SourceJob, SourceTrial, derive
from domain.errors import ApiError
from domain.jobs import DatasetVersionRef
from domain.regrading import (
    Evidence,
    RegradeRequest,
    VerifierTask,
    select_regrade,
    select_regrade_of_one,
    why_ineligible,
)
from domain.requests import parse_request
from domain.vocabulary import JobStatus, TrialStatus
from tests.domain.job_factory import make_plan

NEW_ID = "0a0a0a0a-0000-4000-8000-000000000002"
SEPARATE = VerifierTask(is_separate=True)
GOOD = Evidence(was_shared=False, has_inputs=True, task=SEPARATE)
STATUSES = (TrialStatus.SCORED, TrialStatus.SCORING_ERROR, TrialStatus.CANCELLED, TrialStatus.RUNNING)


def make_trial(index: int, status: TrialStatus) -> SourceTrial:
    return SourceTrial(f"t{index}", index, "demo", "v1", ("alpha", "beta")[index % 2], 0, 1, status)


TRIALS = [make_trial(index, status) for index, status in enumerate(STATUSES)]
FINISHED = SourceJob(make_plan(), JobStatus.COMPLETED, TRIALS[:3])
RUNNING = SourceJob(make_plan(), JobStatus.RUNNING, TRIALS)


def evidence(**changes: Evidence) -> dict[str, Evidence]:
    return {f"t{index}": GOOD for index in range(4)} | changes


@pytest.mark.parametrize(
    ("body", "chosen"),
    [
        ({}, ["t0", "t1", "t2"]),
        ({"statuses": ["SCORED", "CANCELLED"]}, ["t0", "t2"]),
        ({"task_name": "beta"}, ["t1"]),
        ({"statuses": []}, ["t0", "t1", "t2"]),
    ],
)
def test_a_regrade_takes_the_wanted_trials(body: dict[str, Any], chosen: list[str]):
    request = parse_request(RegradeRequest, body)
    assert [t.trial_id for t in select_regrade(FINISHED, evidence(), request)] == chosen


def test_ineligible_trials_are_passed_over_and_told_when_none_is_left():
    shared = replace(GOOD, was_shared=True)
    (left,) = select_regrade(FINISHED, evidence(t0=shared, t2=shared), RegradeRequest())
    assert left.trial_id == "t1"
    with pytest.raises(ApiError, match="2 because its verifier shares") as caught:
        select_regrade(FINISHED, evidence(t0=shared, t2=shared), RegradeRequest(task_name="alpha"))
    assert caught.value.code == "no_regradable_trials"
    assert caught.value.details == {"reasons": {"its verifier shares the agent's box": 2}}


@pytest.mark.parametrize(
    ("source", "body", "code"),
    [
        (RUNNING, {}, "job_not_terminal"),
        (FINISHED, {"statuses": ["SCORED", "DONE"]}, "invalid_status"),
        (FINISHED, {"task_name": "nowhere"}, "no_regradable_trials"),
        (FINISHED, {"statuses": ["BUDGET"]}, "no_regradable_trials"),
        (FINISHED, {"with_tests": {"version": "1"}}, "invalid_input"),
    ],
)
def test_a_regrade_is_refused(source: SourceJob, body: dict[str, Any], code: str):
    with pytest.raises(ApiError) as caught:
        select_regrade(source, evidence(), parse_request(RegradeRequest, body))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (GOOD, None),
        (replace(GOOD, was_shared=True), "its verifier shares the agent's box"),
        (replace(GOOD, has_inputs=False), "nothing was recorded that its verifier could judge again"),
        (replace(GOOD, task=None), "there is no built task alpha to take the tests of"),
        (replace(GOOD, task=VerifierTask(is_separate=False)), "its verifier shares the agent's box"),
        (replace(GOOD, task=replace(SEPARATE, has_steps=True)), "its task has several steps"),
        (replace(GOOD, task=replace(SEPARATE, has_judge=True)), "its verifier asks a language model"),
        (replace(GOOD, task=replace(SEPARATE, refusal="no GPUs")), "no GPUs"),
    ],
)
def test_what_cannot_be_judged_again_says_why(kept: Evidence, reason: str | None):
    assert why_ineligible(FINISHED, TRIALS[0], kept) == reason
    if reason is None:
        assert select_regrade_of_one(FINISHED, evidence(t0=kept), "t0") == TRIALS[:1]
        return
    with pytest.raises(ApiError, match=reason) as caught:
        select_regrade_of_one(FINISHED, evidence(t0=kept), "t0")
    assert (caught.value.code, caught.value.details) == ("regrade_source_ineligible", {"reason": reason})


def test_one_trial_of_a_running_job_is_regraded_once_it_has_settled():
    assert select_regrade_of_one(RUNNING, evidence(), "t0") == TRIALS[:1]
    with pytest.raises(ApiError) as caught:
        select_regrade_of_one(RUNNING, evidence(), "t3")
    assert caught.value.code == "trial_not_settled"


def test_a_regrade_spends_nothing_names_its_tests_and_is_not_regraded_itself():
    tests = DatasetVersionRef(name="demo", version="2")
    source = make_plan(agents=[{"name": "claude", "model_name": "opus"}])
    derived = derive(source, TRIALS[:2], "regrade", NEW_ID, tests)
    assert derived.plan.is_regrade
    assert derived.plan.worst_case_spend_nanos == 0
    assert derived.plan.derivation is not None
    assert derived.plan.derivation.marks() == {"x_with_tests": {"name": "demo", "version": "2"}}
    assert [slot.version_id for slot in derived.slots("v2")] == ["v2", "v2"]
    assert [slot.version_id for slot in derived.slots()] == ["v1", "v1"]
    again = SourceJob(derived.plan, JobStatus.COMPLETED, TRIALS[:2])
    assert "a regrade itself" in (why_ineligible(again, TRIALS[0], GOOD) or "")
