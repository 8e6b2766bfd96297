"""Short ways to say which job or trial is meant, bounds of lists, and what ended a job's trials."""

from __future__ import annotations

import pytest

from cli import traces
from tests.cli.conftest import Evolve
from tests.cli.fake_api import FakeApi, answer_json, job, refusal, trial

FIRST = "0b6f5a10-0000-5000-8000-000000000001"
SECOND = "0b6f5a10-ffff-5000-8000-000000000002"
THIRD = "c0ffee00-0000-5000-8000-000000000003"


@pytest.fixture
def jobs(api: FakeApi) -> FakeApi:
    """Three jobs, newest first as the server lists them, and three trials of the newest."""
    api.page_size = 2
    api.jobs = {each: job(each) for each in (FIRST, SECOND, THIRD)}
    api.trials = {
        "aaaa1111-0000-5000-8000-00000000000a": trial("aaaa1111-0000-5000-8000-00000000000a", job_id=FIRST),
        "aaaa2222-0000-5000-8000-00000000000b": trial(
            "aaaa2222-0000-5000-8000-00000000000b", job_id=FIRST, started_at="2026-03-01T11:00:00.000Z"
        ),
        "bbbb3333-0000-5000-8000-00000000000c": trial("bbbb3333-0000-5000-8000-00000000000c", job_id=SECOND),
    }
    return api


@pytest.mark.parametrize(
    ("word", "meant"), [("last", FIRST), ("c0ff", THIRD), ("0b6f5a10-f", SECOND), (FIRST, FIRST)]
)
def test_a_job_goes_by_last_by_the_start_of_its_id_and_by_its_id(
    word: str, meant: str, jobs: FakeApi, evolve: Evolve
) -> None:
    assert evolve("job", "show", word).out.startswith(f"job\t{meant}\n")


def test_a_whole_id_costs_no_question(jobs: FakeApi, evolve: Evolve) -> None:
    evolve("job", "show", FIRST)
    assert [request.path for request in jobs.requests] == [f"/api/jobs/{FIRST}"]


@pytest.mark.parametrize(
    ("word", "meant"), [("last", "aaaa2222"), ("aaaa1", "aaaa1111"), ("bbbb", "bbbb3333")]
)
def test_a_trial_goes_by_last_and_by_the_start_of_its_id(
    word: str, meant: str, jobs: FakeApi, evolve: Evolve
) -> None:
    assert evolve("trial", "show", word).out.startswith(f"trial\t{meant}")


def test_an_ambiguous_start_names_whom_it_could_mean(jobs: FakeApi, evolve: Evolve) -> None:
    outcome = evolve("job", "cancel", "0b6f5a10")
    assert outcome.exit_code == 1
    assert outcome.err == f"error: 0b6f5a10: 2 jobs begin so: {FIRST}, {SECOND} (ambiguous_id)\n"
    assert "2 trials begin so" in evolve("trial", "stop", "bbbb", "aaaa").err
    assert jobs.asked("POST", "/api/trials/stop") == []


def test_a_start_of_nothing_and_last_of_nothing_are_said(api: FakeApi, evolve: Evolve) -> None:
    assert "you have no jobs (job_not_found)" in evolve("job", "show", "last").err
    assert "dead: no job of yours begins so" in evolve("job", "show", "dead").err
    assert "no trial of your last 20 jobs begins so" in evolve("trial", "show", "dead").err


def test_lists_are_bounded(jobs: FakeApi, evolve: Evolve) -> None:
    assert evolve("job", "list", "-q", "-l", "1").out == f"{FIRST}\n"
    assert len(jobs.asked("GET", "/api/jobs")) == 1
    assert len(evolve("job", "list", "-q", "--limit", "3").out.split()) == 3
    assert len(evolve("job", "trials", FIRST, "-q", "-l", "1").out.split()) == 1


def test_a_status_is_one_that_a_trial_can_have_in_any_case(jobs: FakeApi, evolve: Evolve) -> None:
    assert len(evolve("job", "trials", FIRST, "--status", "scored, budget", "-q").out.split()) == 2
    assert jobs.requests[-1].query["status"] == "SCORED,BUDGET"
    wrong = evolve("job", "trials", FIRST, "--status", "FAILED")
    assert wrong.exit_code == 2
    assert "INFRASTRUCTURE_ERROR" in wrong.err


def test_a_job_says_what_its_trials_ended_by_and_where_to_look(api: FakeApi, evolve: Evolve) -> None:
    evals = {
        "a": {"exception_stats": {"AgentTimeoutError": ["t1"], "SandboxDeath": ["t2"]}},
        "b": {"exception_stats": {"SandboxDeath": ["t3"]}},
        "c": {"exception_stats": {}},
    }
    stats = {"cost_usd": None, "n_unmeasured_trials": 0, "evals": evals}
    api.jobs = {"job-1": job("job-1", stats=stats), "job-2": job("job-2")}
    outcome = evolve("job", "show", "job-1")
    assert outcome.rows[-2:] == [
        ["SandboxDeath", "2", "evolve trial show t2"],
        ["AgentTimeoutError", "1", "evolve trial show t1"],
    ]
    assert "evolve job resume job-1 -f EXCEPTION" in outcome.err
    assert "exception" not in evolve("job", "show", "job-2").out


def test_a_trace_is_followed_to_its_trials_end_each_event_once(
    api: FakeApi, evolve: Evolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "FOLLOW_POLL_SEC", 0.0)
    first, second, third = ({"seq": seq, "type": "message", "data": {"n": seq}} for seq in (1, 2, 3))
    api.trials = {"t1": trial("t1")}
    api.script("GET", "/api/trials/t1", *(answer_json(trial("t1", status="RUNNING")) for _ in range(2)))
    for items in ([first, second], [], [third]):
        api.script("GET", "/api/trials/t1/trace", answer_json({"items": items, "nextCursor": None}))
    lines = evolve("trial", "trace", "t1", "--follow", "--tail", "2").out.splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    asked = [request.query for request in api.asked("GET", "/api/trials/t1/trace")]
    assert [(query.get("tail"), query.get("cursor")) for query in asked] == [
        ("2", None),
        (None, "2"),
        (None, "2"),
    ]


CLAUDE = {
    "name": "claude",
    "runnable": True,
    "reason": None,
    "default_model": "opus",
    "default_reasoning_effort": "high",
    "version_pinnable": True,
    "supports_config": True,
    "presets": ["no-internet"],
    "models": [
        {
            "alias": "opus",
            "model_id": "claude-opus-5.5",
            "reasoning_efforts": ["low", "high"],
            "default_reasoning_effort": "high",
        }
    ],
}


def test_built_in_agents_are_listed_and_shown_with_models_efforts_and_presets(
    api: FakeApi, evolve: Evolve
) -> None:
    api.agents = [CLAUDE, {"name": "pi", "runnable": False, "reason": "later", "models": [], "presets": []}]
    rows = evolve("agent", "list", "--built-in").rows
    assert rows[1:] == [["claude", "yes", "opus", "1", "no-internet"], ["pi", "no: later", "-", "-", "-"]]
    shown = evolve("agent", "show", "claude")
    assert ["presets", "no-internet"] in shown.rows
    assert shown.rows[-1] == ["opus", "claude-opus-5.5", "low high", "high"]
    api.script("GET", "/api/agents/mine", refusal(404, "agent_not_found", "No mine here."))
    assert "(agent_not_found)" in evolve("agent", "show", "mine").err
