"""The checks after a storm see what is wrong: a job that is right, and one fault after another in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from domain.jobs import trial_id_of
from tests.chaos.caller import History, MadeJob
from tests.chaos.checker import CHECKS, Evidence
from tests.domain.job_factory import JOB_ID, make_plan, make_version

Rows = list[dict[str, Any]]

AT = datetime(2026, 1, 1, tzinfo=UTC)
TRIAL = trial_id_of(JOB_ID, 0)


def evidence() -> Evidence:
    """One job of one trial that was retried once, then scored."""
    told = [
        ("job.created", {}),
        ("job.running", {}),
        ("trial.running", {"trial_id": TRIAL}),
        ("trial.settled", {"trial_id": TRIAL, "status": "INFRASTRUCTURE_ERROR"}),
        ("trial.retrying", {"trial_id": TRIAL, "retry": 1}),
        ("trial.running", {"trial_id": TRIAL}),
        ("trial.scoring", {"trial_id": TRIAL}),
        ("trial.settled", {"trial_id": TRIAL, "status": "SCORED"}),
        ("job.completed", {}),
    ]
    stream = [(seq, kind, payload) for seq, (kind, payload) in enumerate(told, 1)]
    made = MadeJob(JOB_ID, 1, deepcopy(stream), is_stream_over=True)
    return Evidence(
        history=History(jobs={JOB_ID: made}),
        jobs=[_job(len(told))],
        trials={JOB_ID: [_trial()]},
        events={JOB_ID: [{"seq": seq, "type": kind, "payload": data} for seq, kind, data in stream]},
        groups={JOB_ID: [_group()]},
        keys=[_key()],
        calls=[
            {"id": "c1", "key_id": "k", "status": "measured", "cost_nanos": 5},
            {"id": "c2", "key_id": "k", "status": "held", "cost_nanos": 3},
            {"id": "c3", "key_id": "k", "status": "refused", "cost_nanos": None},
        ],
        credits=[{"balance_nanos": 92, "held_nanos": 0}],
        executions=Counter({f"evolve-{TRIAL}-2-0-agent agent": 1}),
        first_balance_nanos=100,
        n_upstream_calls=2,
    )


def _job(last_seq: int) -> dict[str, Any]:
    return {
        "id": JOB_ID,
        "status": "COMPLETED",
        "finished_at": AT,
        "plan": make_plan(make_version("alpha")).model_dump(mode="json"),
        "n_total_trials": 1,
        "by_status": {"SCORED": 1, "QUEUED": 0},
        "totals": {"n_errored_trials": 0, "n_retries": 1, "n_unmeasured_trials": 0, "cost_nanos": 5},
        "last_seq": last_seq,
    }


def _trial() -> dict[str, Any]:
    return {
        "id": TRIAL,
        "task_name": "alpha",
        "evals_key": "e",
        "status": "SCORED",
        "phase": None,
        "reward": 1.0,
        "finished_at": AT,
        "attempt_number": 2,
        "n_retries": 1,
        "retries": [{"attempt_number": 1}],
        "result": {"verifier_result": {"rewards": {"reward": 1.0}}, "exception_info": None},
    }


def _group() -> dict[str, Any]:
    sums = {"n_total": 1, "n_settled": 1, "n_rewarded": 1, "n_errors": 0, "reward_sum": 1.0}
    return {"evals_key": "e", **sums, "is_binary": True, "pass_at_k": {}}


def _key() -> dict[str, Any]:
    return {
        "id": "k",
        "job_id": JOB_ID,
        "trial_id": TRIAL,
        "spent_nanos": 8,
        "held_nanos": 0,
        "n_open": 0,
        "revoked_at": AT,
    }


def wrong(of: Evidence) -> set[str]:
    return {check.__name__ for check in CHECKS if check(of)}


def test_what_is_right_is_found_right() -> None:
    assert wrong(evidence()) == set()


def test_an_agents_build_may_be_begun_again() -> None:
    found = evidence()
    found.executions.update({"evolve-of-a-revision-1-0-agent agent-build": 3})
    assert wrong(found) == set()


def _events(of: Evidence) -> Rows:
    return of.events[JOB_ID]


def _without(index: int) -> Callable[[Evidence], None]:
    def change(of: Evidence) -> None:
        del _events(of)[index]

    return change


def _with(rows: Callable[[Evidence], Rows], **members: Any) -> Callable[[Evidence], None]:
    return lambda of: rows(of)[0].update(members)


def _swap(of: Evidence) -> None:
    """The retry is told before the settle that it follows."""
    rows = _events(of)
    for member in ("type", "payload"):
        rows[3][member], rows[4][member] = rows[4][member], rows[3][member]


def _settle_twice(of: Evidence) -> None:
    _events(of).insert(8, {**_events(of)[7]})


def _trials(of: Evidence) -> Rows:
    return of.trials[JOB_ID]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda of: of.history.wrong.append("500"), "every_answer_was_right"),
        (_with(lambda of: of.jobs, status="RUNNING"), "every_accepted_job_ends"),
        (lambda of: of.jobs.clear(), "every_accepted_job_ends"),
        (lambda of: _trials(of).append(_trial()), "every_job_has_its_trials"),
        (_with(_trials, status="RUNNING"), "every_job_has_its_trials"),
        (_with(_trials, n_retries=0), "every_job_has_its_trials"),
        (lambda of: of.executions.update(of.executions), "no_command_runs_twice"),
        (lambda of: _trials(of)[0]["result"].update(x_left_out=["out"]), "no_output_is_lost"),
        (_without(4), "events_have_no_gap"),
        (lambda of: of.history.jobs[JOB_ID].events.pop(2), "events_have_no_gap"),
        (_swap, "each_attempt_number_settles_once"),
        (_settle_twice, "each_attempt_number_settles_once"),
        (_without(7), "each_attempt_number_settles_once"),
        (lambda of: of.jobs[0]["by_status"].update(SCORED=2), "statistics_are_a_recount"),
        (lambda of: of.jobs[0]["totals"].update(n_retries=0), "statistics_are_a_recount"),
        (lambda of: of.groups[JOB_ID][0].update(reward_sum=2.0), "statistics_are_a_recount"),
        (lambda of: of.jobs[0]["totals"].update(cost_nanos=8), "money_adds_up"),
        (_with(lambda of: of.keys, spent_nanos=5), "money_adds_up"),
        (_with(lambda of: of.keys, held_nanos=1), "money_adds_up"),
        (_with(lambda of: of.calls, status="open"), "money_adds_up"),
        (_with(lambda of: of.credits, balance_nanos=91), "money_adds_up"),
        (lambda of: of.calls.pop(1), "money_adds_up"),
        (_with(lambda of: of.keys, revoked_at=None), "no_key_outlives_its_trial"),
        (_with(lambda of: of.keys, revoked_at=AT + timedelta(seconds=1)), "no_key_outlives_its_trial"),
    ],
)
def test_a_fault_is_seen(change: Callable[[Evidence], Any], check: str) -> None:
    found = evidence()
    change(found)
    assert check in wrong(found)
