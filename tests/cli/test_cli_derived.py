"""Commands that make a job of another's trials: what they ask, and what they print."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Evolve
from tests.cli.fake_api import Answer, FakeApi, answer_json, job, refusal, trial


@pytest.mark.parametrize(
    ("command", "route", "body"),
    [
        (("job", "resume", "a"), "/api/jobs/a/resume", {}),
        (
            ("job", "resume", "a", "-f", "ScoringError", "-f", "CancelledError"),
            "/api/jobs/a/resume",
            {"filter_error_types": ["ScoringError", "CancelledError"]},
        ),
        (("job", "retry", "a"), "/api/jobs/a/retry", {}),
        (("job", "retry", "a", "--failed-only"), "/api/jobs/a/retry", {"failed_only": True}),
        (("job", "retry", "a", "-t", "t1", "-t", "t2"), "/api/jobs/a/retry", {"trial_ids": ["t1", "t2"]}),
        (("trial", "retry", "t1"), "/api/trials/t1/retry", {}),
        (("job", "regrade", "a"), "/api/jobs/a/regrade", {}),
        (
            ("job", "regrade", "a", "--status", "SCORED, BUDGET", "--task", "x", "--with-tests", "demo@2"),
            "/api/jobs/a/regrade",
            {
                "statuses": ["SCORED", "BUDGET"],
                "task_name": "x",
                "with_tests": {"name": "demo", "version": "2"},
            },
        ),
        (
            ("trial", "regrade", "t1", "--with-tests", "demo"),
            "/api/trials/t1/regrade",
            {"with_tests": {"name": "demo"}},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_derived_jobs_id_is_printed(
    api: FakeApi, evolve: Evolve, command: tuple[str, ...], route: str, body: dict[str, object]
) -> None:
    api.script("POST", route, answer_json(job("b"), 201))
    assert evolve(*command).out == "b\n"
    (request,) = api.asked("POST", route)
    assert request.json == body


def test_a_lost_answer_is_asked_for_again_under_the_same_key(api: FakeApi, evolve: Evolve) -> None:
    api.script("POST", "/api/jobs/a/resume", Answer(cut=True), answer_json(job("b"), 201))
    assert json.loads(evolve("job", "resume", "a", "--json").out)["id"] == "b"
    first, second = api.asked("POST", "/api/jobs/a/resume")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


def test_a_derived_job_says_what_it_was_made_of(api: FakeApi, evolve: Evolve) -> None:
    source = {"action": "regrade", "type": "hub", "job_id": "a"}
    api.jobs = {"b": job("b", source_jobs=[source], x_with_tests={"name": "demo", "version": "2"})}
    api.trials = {"t2": trial("t2", x_source_trial_id="t1")}
    shown = evolve("job", "show", "b").out
    assert "from\tregrade of a\n" in shown
    assert "judged by\tthe tests of demo@2\n" in shown
    assert "made of\tt1\n" in evolve("trial", "show", "t2").out


def test_a_regrade_has_no_key_to_be_asked_for_again_under(api: FakeApi, evolve: Evolve) -> None:
    api.script("POST", "/api/trials/t1/regrade", answer_json(job("b"), 201))
    assert evolve("trial", "regrade", "t1").out == "b\n"
    assert "idempotency-key" not in api.asked("POST", "/api/trials/t1/regrade")[0].headers


def test_failed_only_and_named_trials_exclude_each_other(api: FakeApi, evolve: Evolve) -> None:
    assert evolve("job", "retry", "a", "--failed-only", "-t", "t1").exit_code == 2
    assert api.requests == []


def test_a_refusal_is_told_with_its_code(api: FakeApi, evolve: Evolve) -> None:
    api.script("POST", "/api/jobs/a/resume", refusal(409, "no_failed_trials", "Nothing to resume."))
    outcome = evolve("job", "resume", "a")
    assert (outcome.exit_code, outcome.err) == (1, "error: Nothing to resume. (no_failed_trials)\n")
