from __future__ import annotations

from domain import events
from domain.events import TrialName
from domain.vocabulary import AttemptPhase, TrialStatus
from tests.domain.job_factory import make_plan

TRIAL = TrialName(trial_id="t", task_name="alpha", attempt_number=2)


def test_job_created_says_everything_that_was_resolved():
    data = events.job_created(make_plan(n_attempts=2, agent_timeout_multiplier=2)).data
    assert data["datasets"] == [{"name": "demo", "version": "1.0"}]
    assert (data["task_count"], data["trial_count"], data["n_attempts"]) == (3, 6, 2)
    assert data["agents"] == [
        {"name": "oracle", "model_name": None, "version": None, "reasoning_effort": None}
    ]
    assert data["retry"]["max_retries"] == 2
    assert (data["timeout_multiplier"], data["agent_timeout_multiplier"]) == (1.0, 2.0)
    assert (data["max_trial_spend_usd"], data["sandbox_provider"]) == (200.0, "local")
    assert data["verifier_timeout_multiplier"] is None


def test_a_settle_without_a_score_has_no_reward_key():
    event = events.trial_settled(TRIAL, TrialStatus.SCORING_ERROR, exception=("ScoringError", "no file"))
    assert event.data == {
        "trial_id": "t",
        "task_name": "alpha",
        "status": "SCORING_ERROR",
        "exception_type": "ScoringError",
        "exception_message": "no file",
    }


def test_a_reward_of_zero_is_a_reward():
    event = events.trial_settled(TRIAL, TrialStatus.SCORED, reward=0.0, attempt_phase=AttemptPhase.PERSIST)
    assert event.data["reward"] == 0.0
    assert event.data["attempt_phase"] == "persist"


def test_each_attempt_number_has_its_own_keys():
    first = TrialName(trial_id="t", task_name="alpha", attempt_number=1)
    assert events.trial_running(first).key != events.trial_running(TRIAL).key
    assert events.trial_running(TRIAL).key == events.trial_running(TRIAL).key
    assert events.trial_running(TRIAL).key != events.trial_scoring(TRIAL).key


def test_terminal_events_are_the_three_that_end_the_stream():
    assert {event.value for event in events.TERMINAL_EVENTS} == {
        "job.completed",
        "job.cancelled",
        "job.failed",
    }
