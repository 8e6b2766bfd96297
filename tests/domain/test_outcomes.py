"""What a trial comes to, from how its agent, verifier and money ended."""

from __future__ import annotations

from typing import Any

import pytest

from domain.causes import CONSEQUENCES, Cause
from domain.outcomes import NOTHING_SPENT, AttemptEnd, agent_result, exception_of, outcome_of
from domain.stats import LaneReading, TokenCounts
from domain.vocabulary import ExceptionType, SpendSource, TrialStatus

SPENT = LaneReading(
    tokens=TokenCounts(n_input_tokens=1_000, n_cache_tokens=400, n_output_tokens=50),
    cost_nanos=12_345_678,
    source=SpendSource.MEASURED,
)
ZERO_REWARD = {"reward": 0.0}


@pytest.mark.parametrize("cause", [each for each in Cause if CONSEQUENCES[each].is_verified])
def test_an_agent_that_ended_on_its_own_account_is_scored_on_what_it_left(cause: Cause):
    end = AttemptEnd(has_agent_ended=True, cause=cause, rewards=ZERO_REWARD, spend=SPENT)
    outcome = outcome_of(end)
    assert (outcome.status, outcome.reward) == (TrialStatus.SCORED, 0.0)
    assert (outcome.cost_nanos, outcome.spend_source) == (12_345_678, SpendSource.MEASURED)
    assert exception_of(end) is None


@pytest.mark.parametrize(
    ("cause", "status", "kind"),
    [
        (Cause.BUDGET, TrialStatus.BUDGET, "ApiUsageLimitError"),
        (Cause.AUTH, TrialStatus.INFRASTRUCTURE_ERROR, "InfrastructureError"),
        (Cause.RATE_LIMIT, TrialStatus.INFRASTRUCTURE_ERROR, "InfrastructureError"),
        (Cause.MODEL_UNAVAILABLE, TrialStatus.INFRASTRUCTURE_ERROR, "InfrastructureError"),
        (Cause.NO_MODEL_CALL, TrialStatus.INFRASTRUCTURE_ERROR, "InfrastructureError"),
    ],
)
def test_an_end_that_is_not_the_agents_has_no_score_and_keeps_its_spend(
    cause: Cause, status: TrialStatus, kind: str
):
    end = AttemptEnd(has_agent_ended=True, cause=cause, agent_message="the last words", spend=SPENT)
    outcome, exception = outcome_of(end), exception_of(end)
    assert (outcome.status, outcome.reward, outcome.cost_nanos) == (status, None, 12_345_678)
    assert exception is not None
    assert exception[0] == kind
    assert "the last words" in exception[1]


def test_a_budget_that_was_spent_up_before_the_box_is_the_same_refusal():
    message = "[agent-phase:budget_exhausted] user: no credits"
    end = AttemptEnd(failure=message, is_budget=True)
    assert exception_of(end) == ("ApiUsageLimitError", message)
    outcome = outcome_of(end)
    assert (outcome.status, outcome.cost_nanos, outcome.spend_source) == (TrialStatus.BUDGET, None, None)


def test_spend_is_unknown_until_the_agent_ran_and_nothing_for_one_that_calls_no_model():
    assert agent_result(AttemptEnd(failure="the box died")) is None
    oracle = agent_result(AttemptEnd(has_agent_ended=True, rewards={"reward": 1.0}, spend=NOTHING_SPENT))
    assert oracle is not None
    assert (oracle["cost_usd"], oracle["n_input_tokens"]) == (0.0, 0)


def test_what_was_spent_stands_beside_why_the_agent_ended():
    end = AttemptEnd(
        has_agent_ended=True, is_agent_timeout=True, cause=Cause.TIMEOUT, rewards=ZERO_REWARD, spend=SPENT
    )
    result = agent_result(end)
    assert result is not None
    assert (result["cost_usd"], result["n_cache_tokens"]) == (0.012345678, 400)
    assert result["metadata"] == {
        "exit_code": None,
        "timed_out": True,
        "cause": "timeout",
        "exception": "AgentTimeoutError",
    }


@pytest.mark.parametrize(
    ("combined", "status", "exception"),
    [
        ({"reward": 0.5}, TrialStatus.SCORED, None),  # of the steps before
        (None, TrialStatus.INFRASTRUCTURE_ERROR, (ExceptionType.INFRASTRUCTURE, "step two: no")),
    ],
)
def test_a_step_that_could_not_start_leaves_what_was_scored_before(
    combined: dict[str, float] | None, status: TrialStatus, exception: Any
) -> None:
    end = AttemptEnd(unready="step two: no", rewards=combined)
    assert (outcome_of(end).status, outcome_of(end).rewards) == (status, combined)
    assert exception_of(end) == exception


def test_a_later_steps_failure_is_not_hidden_by_what_was_scored_before() -> None:
    scored = {"reward": 1.0}
    for end, status in (
        (AttemptEnd(rewards=scored, verifier_problem="no reward file"), TrialStatus.SCORING_ERROR),
        (AttemptEnd(rewards=scored, is_verifier_timeout=True), TrialStatus.SCORING_ERROR),
        (AttemptEnd(rewards=scored, failure="the box died"), TrialStatus.INFRASTRUCTURE_ERROR),
        (AttemptEnd(rewards=scored, cause=Cause.RATE_LIMIT), TrialStatus.INFRASTRUCTURE_ERROR),
        (AttemptEnd(rewards=scored, unready="no", failure="stop", is_cancelled=True), TrialStatus.CANCELLED),
    ):
        assert (outcome_of(end).status, outcome_of(end).rewards) == (status, None)
