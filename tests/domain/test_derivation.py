from __future__ import annotations

from typing import Any

import pytest

from domain.derivation import (
    ResumeRequest,
    RetryRequest,
    SourceJob,
    SourceTrial,
    derive,
    select_resume,
    select_retry,
    select_retry_of_one,
    selection_fingerprint,
)
from domain.errors import ApiError
from domain.jobs import TrialSlot, trial_id_of
from domain.requests import parse_request
from domain.vocabulary import JobStatus, TrialStatus
from tests.domain.job_factory import make_plan, make_version, plan_trials

NEW_ID = "0a0a0a0a-0000-4000-8000-000000000002"
# One trial of every end, in this order: what it is called below, its status, what ended it.
ENDS: tuple[tuple[str, TrialStatus, tuple[str, ...]], ...] = (
    ("one", TrialStatus.SCORED, ()),
    ("late", TrialStatus.SCORED, ("AgentTimeoutError",)),
    ("unscored", TrialStatus.SCORING_ERROR, ("ScoringError",)),
    ("dead-box", TrialStatus.INFRASTRUCTURE_ERROR, ("InfrastructureError",)),
    ("dead-key", TrialStatus.INFRASTRUCTURE_ERROR, ("InfrastructureError", "AgentAuthenticationError")),
    ("poor", TrialStatus.BUDGET, ("ApiUsageLimitError",)),
    ("silent", TrialStatus.INDETERMINATE, ("IncompleteTrialError",)),
    ("stopped", TrialStatus.CANCELLED, ("CancelledError",)),
)
LIVE = (("waiting", TrialStatus.QUEUED, ()), ("running", TrialStatus.RUNNING, ()))


def source_of(*ends: tuple[str, TrialStatus, tuple[str, ...]], status: JobStatus) -> SourceJob:
    trials = [
        SourceTrial(name, index, "demo", "v1", f"task-{index}", 0, 1, trial_status, frozenset(exceptions))
        for index, (name, trial_status, exceptions) in enumerate(ends)
    ]
    return SourceJob(make_plan(make_version(*(trial.task_name for trial in trials))), status, trials)


FINISHED = source_of(*ENDS, status=JobStatus.COMPLETED)
CANCELLED = source_of(*ENDS[:1], *LIVE[:1], status=JobStatus.CANCELLED)
RUNNING = source_of(*ENDS, *LIVE, status=JobStatus.RUNNING)
SCORED = source_of(*ENDS[:2], status=JobStatus.COMPLETED)


def names(trials: Any) -> list[str]:
    return [trial.trial_id for trial in trials]


@pytest.mark.parametrize(
    ("source", "wanted", "chosen"),
    [
        (FINISHED, None, ["unscored", "dead-box", "dead-key", "poor", "silent", "stopped"]),
        (FINISHED, [], ["unscored", "dead-box", "dead-key", "poor", "silent", "stopped"]),
        (FINISHED, ["InfrastructureError"], ["dead-box", "dead-key"]),
        (FINISHED, ["AgentAuthenticationError"], ["dead-key"]),
        (FINISHED, ["CancelledError", "ScoringError"], ["unscored", "stopped"]),
        (CANCELLED, None, ["waiting"]),
        (CANCELLED, ["CancelledError"], ["waiting"]),
    ],
)
def test_a_resume_takes_failed_stopped_and_never_begun_trials(
    source: SourceJob, wanted: list[str] | None, chosen: list[str]
):
    assert names(select_resume(source, ResumeRequest(filter_error_types=wanted))) == chosen


@pytest.mark.parametrize(
    ("source", "wanted", "code"),
    [
        (RUNNING, None, "job_not_terminal"),
        (SCORED, None, "no_failed_trials"),
        (FINISHED, ["AgentTimeoutError"], "no_failed_trials"),
        (CANCELLED, ["InfrastructureError"], "no_failed_trials"),
    ],
)
def test_a_resume_is_refused(source: SourceJob, wanted: list[str] | None, code: str):
    with pytest.raises(ApiError) as caught:
        select_resume(source, ResumeRequest(filter_error_types=wanted))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("source", "body", "chosen"),
    [
        (FINISHED, {}, [name for name, _, _ in ENDS]),
        (CANCELLED, {"failed_only": False}, ["one", "waiting"]),
        (FINISHED, {"failed_only": True}, ["unscored", "dead-box", "dead-key", "poor", "silent"]),
        (FINISHED, {"trial_ids": ["poor", "one", "poor"]}, ["one", "poor"]),
        (RUNNING, {"trial_ids": ["stopped"], "failed_only": False}, ["stopped"]),
    ],
)
def test_a_retry_takes_all_failed_or_named_trials(source: SourceJob, body: dict[str, Any], chosen: list[str]):
    assert names(select_retry(source, parse_request(RetryRequest, body))) == chosen


@pytest.mark.parametrize(
    ("source", "body", "code", "param"),
    [
        (RUNNING, {}, "job_not_terminal", None),
        (RUNNING, {"failed_only": True}, "job_not_terminal", None),
        (SCORED, {"failed_only": True}, "no_failed_trials", None),
        (RUNNING, {"trial_ids": ["one", "running"]}, "trial_not_settled", "trial_ids"),
        (RUNNING, {"trial_ids": ["one", "another job's"]}, "trial_not_found", "trial_ids"),
        (FINISHED, {"trial_ids": ["one"], "failed_only": True}, "invalid_input", "failed_only"),
        (FINISHED, {"trial_ids": []}, "invalid_input", "trial_ids"),
        (FINISHED, {"failed": True}, "invalid_input", "failed"),
    ],
)
def test_a_retry_is_refused(source: SourceJob, body: dict[str, Any], code: str, param: str | None):
    with pytest.raises(ApiError) as caught:
        select_retry(source, parse_request(RetryRequest, body))
    assert (caught.value.code, caught.value.param) == (code, param)


def test_the_door_of_one_trial_chooses_and_fingerprints_as_the_jobs():
    (one,) = select_retry_of_one(RUNNING, "one")
    named = select_retry(RUNNING, RetryRequest(trial_ids=["one"]))
    assert [one] == named
    assert selection_fingerprint("a", [one]) == selection_fingerprint("a", named)
    assert selection_fingerprint("a", [one]) != selection_fingerprint("b", [one])
    with pytest.raises(ApiError, match="once it has settled") as caught:
        select_retry_of_one(RUNNING, "running")
    assert (caught.value.code, caught.value.param) == ("trial_not_settled", None)


def test_a_derived_job_is_its_source_with_only_the_chosen_trials():
    planned = plan_trials(
        make_version("a", "b", "c", "z", failed=("z",)),
        make_version("d", dataset="other"),
        agents=[{"name": "claude", "model_name": "opus"}, {"name": "oracle"}],
        n_attempts=2,
        retry={"max_retries": 1},
        timeout_multiplier=3.0,
        max_trial_spend_usd=5.0,
    )
    assert planned.plan.build_exclusions
    chosen = [_as_source(slot) for slot in planned.slots() if slot.index in (1, 3, 4)]
    derived = derive(planned.plan, chosen, "retry", NEW_ID)
    plan = derived.plan
    changed = {"job_id", "job_name", "datasets", "build_exclusions", "derivation"}
    assert plan.model_dump(exclude=changed) == planned.plan.model_dump(exclude=changed)
    assert (plan.job_id, plan.job_name, plan.build_exclusions) == (NEW_ID, "a job-retry", ())
    assert [(dataset.name, dataset.n_tasks) for dataset in plan.datasets] == [("demo", 2), ("other", 0)]
    assert plan.derivation is not None
    assert plan.derivation.wire() == {"action": "retry", "type": "hub", "job_id": planned.plan.job_id}
    assert (plan.n_trials, plan.n_tasks, plan.is_regrade) == (3, 2, False)
    # Two of the three trials are claude's: each may spend its cap twice.
    assert plan.worst_case_spend_nanos == 2 * 2 * 5_000_000_000
    slots = list(derived.slots())
    assert [(s.index, s.trial_id) for s in slots] == [(n, trial_id_of(NEW_ID, n)) for n in range(3)]
    assert [(s.task_name, s.arm_index, s.attempt) for s in slots] == [("a", 0, 2), ("a", 1, 2), ("b", 0, 1)]
    assert [s.source_trial_id for s in slots] == [trial.trial_id for trial in chosen]


def test_a_long_name_stays_a_name():
    plan = make_plan(job_name="x").model_copy(update={"job_name": "n" * 200})
    assert len(derive(plan, [], "resume", NEW_ID).plan.job_name) == 200


def test_a_derived_job_can_be_derived_from():
    first = derive(FINISHED.plan, FINISHED.trials[:3], "retry", NEW_ID)
    second = derive(first.plan, FINISHED.trials[2:3], "resume", "0a0a0a0a-0000-4000-8000-000000000003")
    assert second.plan.n_trials == second.plan.n_tasks == 1
    assert second.plan.derivation is not None
    assert second.plan.derivation.source_job_id == NEW_ID


def test_a_regrade_has_no_agent_to_run_again():
    regrade = derive(FINISHED.plan, FINISHED.trials, "regrade", NEW_ID)
    source = SourceJob(regrade.plan, JobStatus.COMPLETED, FINISHED.trials)
    for select in (
        lambda: select_resume(source, ResumeRequest()),
        lambda: select_retry(source, RetryRequest()),
        lambda: select_retry_of_one(source, "one"),
    ):
        with pytest.raises(ApiError, match="no agent to run again") as caught:
            select()
        assert caught.value.code == "feature_unsupported"


def _as_source(slot: TrialSlot) -> SourceTrial:
    return SourceTrial(
        trial_id=slot.trial_id,
        index=slot.index,
        source=slot.source,
        version_id=slot.version_id,
        task_name=slot.task_name,
        arm_index=slot.arm_index,
        attempt=slot.attempt,
        status=TrialStatus.SCORED,
    )
