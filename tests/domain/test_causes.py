"""Why an agent's run ended: what the gateway saw outranks exit codes and words."""

from __future__ import annotations

from typing import Any

import pytest

from domain.causes import CONSEQUENCES, AgentFacts, Cause, ModelFacts, cause_of, is_verified
from domain.retry_policy import DEFAULT_EXCLUDE_EXCEPTIONS
from domain.vocabulary import TrialStatus

WELL = ModelFacts(n_calls=3, last_status=200)


def ended(*, calls: ModelFacts | None = WELL, **facts: Any) -> Cause:
    return cause_of(AgentFacts.model_validate({"model": calls, "must_call": True, "exit_code": 0, **facts}))


@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({}, Cause.FINISHED),
        ({"exit_code": 1}, Cause.NON_ZERO_EXIT),
        ({"exit_code": None, "is_timeout": True}, Cause.TIMEOUT),
        # gemini and droid end with 0 when they are killed.
        ({"exit_code": 0, "is_timeout": True}, Cause.TIMEOUT),
        ({"said": "context_length", "exit_code": 1}, Cause.CONTEXT_LENGTH),
        ({"said": "safety_refusal", "exit_code": 1}, Cause.SAFETY_REFUSAL),
        # A failure that the harness reported and no call shows is the agent's own.
        ({"said": "other", "exit_code": 1}, Cause.NON_ZERO_EXIT),
    ],
)
def test_an_agent_whose_calls_went_well_ended_as_its_process_did(facts: dict[str, Any], cause: Cause):
    assert ended(**facts) is cause


@pytest.mark.parametrize(
    ("refusal", "cause"),
    [
        ("own_cap", Cause.OWN_CAP),
        ("user", Cause.BUDGET),
        ("team", Cause.BUDGET),
        ("platform", Cause.BUDGET),
        ("unpriced", Cause.MODEL_NOT_FOUND),
        ("no_provider_key", Cause.AUTH),
    ],
)
@pytest.mark.parametrize("exit_code", [0, 1, 146])
def test_a_refusal_of_every_call_ends_a_run_whatever_its_exit(refusal: str, cause: Cause, exit_code: int):
    # qwen ends with 0 and claims success.
    assert ended(calls=ModelFacts(n_calls=4, last_refusal=refusal), exit_code=exit_code) is cause


def test_a_cap_that_admitted_no_call_at_all_is_no_end_of_a_run():
    calls = ModelFacts(n_calls=1, was_admitted=False, last_refusal="own_cap")
    assert ended(calls=calls, exit_code=1) is Cause.CAP_TOO_LOW
    assert not is_verified(Cause.CAP_TOO_LOW)


@pytest.mark.parametrize(
    ("status", "error", "cause"),
    [
        # The words of gateway_calls.error_kind.
        (401, "http_401", Cause.AUTH),
        (402, "http_402", Cause.AUTH),
        (429, "http_429", Cause.RATE_LIMIT),
        # The operator's key or account, told apart by the gateway from what it is answered with.
        (400, "authentication_error", Cause.AUTH),
        (400, "billing_error", Cause.AUTH),
        (429, "insufficient_quota", Cause.AUTH),
        (200, "rate_limit_error", Cause.RATE_LIMIT),
        (200, "context_length_exceeded", Cause.CONTEXT_LENGTH),
        (400, "http_400", Cause.NON_ZERO_EXIT),
        (500, "http_500", Cause.MODEL_UNAVAILABLE),
        (200, "overloaded_error", Cause.MODEL_UNAVAILABLE),
        (200, "cut", Cause.MODEL_UNAVAILABLE),
        (None, "connect", Cause.MODEL_UNAVAILABLE),
        (404, "http_404", Cause.MODEL_NOT_FOUND),
    ],
)
def test_a_last_call_that_failed_is_the_cause_of_a_run_that_ended_badly(
    status: int | None, error: str, cause: Cause
):
    calls = ModelFacts(n_calls=4, last_status=status, last_error=error)
    assert ended(calls=calls, exit_code=1) is cause


def test_a_harness_that_ends_with_0_on_a_failure_but_says_so_is_not_believed_to_have_finished():
    calls = ModelFacts(n_calls=4, last_status=500, last_error="http_500")
    assert ended(calls=calls, exit_code=0, said="other") is Cause.MODEL_UNAVAILABLE


def test_a_deadline_in_the_middle_of_a_call_is_a_deadline():
    calls = ModelFacts(n_calls=4, last_status=200, last_error="client_gone")
    assert ended(calls=calls, exit_code=None, is_timeout=True) is Cause.TIMEOUT
    # An agent that asked in vain until its deadline is not judged for it.
    calls = ModelFacts(n_calls=40, last_status=500, last_error="http_500")
    assert ended(calls=calls, exit_code=None, is_timeout=True) is Cause.MODEL_UNAVAILABLE


def test_a_failure_that_the_agent_got_over_is_none():
    calls = ModelFacts(n_calls=4, last_status=429, last_error="http_429")
    assert ended(calls=calls, exit_code=0) is Cause.FINISHED


def test_a_run_of_a_harness_without_a_call_is_no_run_and_an_agent_that_needs_none_may_have_none():
    assert ended(calls=ModelFacts(), exit_code=1) is Cause.NO_MODEL_CALL
    assert ended(calls=ModelFacts(), exit_code=0) is Cause.NO_MODEL_CALL
    assert ended(calls=ModelFacts(), exit_code=None, is_timeout=True) is Cause.NO_MODEL_CALL
    assert cause_of(AgentFacts(exit_code=3)) is Cause.NON_ZERO_EXIT
    assert cause_of(AgentFacts(exit_code=0)) is Cause.FINISHED


def test_every_cause_has_its_consequence_and_only_infrastructure_is_retried():
    assert set(CONSEQUENCES) == set(Cause)
    for consequence in CONSEQUENCES.values():
        assert consequence.is_verified == (consequence.status is None) == (consequence.exception is None)
        if consequence.is_retried:
            assert consequence.status is TrialStatus.INFRASTRUCTURE_ERROR
        if consequence.status is TrialStatus.INFRASTRUCTURE_ERROR:
            # The default policy and the table say the same.
            is_excluded = consequence.harbor_name in DEFAULT_EXCLUDE_EXCEPTIONS
            assert consequence.is_retried is not is_excluded


def test_an_agent_is_verified_unless_its_cause_says_no():
    assert is_verified(None)
    assert is_verified("own_cap")
    assert not is_verified("budget")


@pytest.mark.parametrize("exit_code", [0, 1])
def test_a_harness_that_gives_up_on_an_answer_that_was_cut_did_not_end_on_its_own_account(exit_code: int):
    # gemini (1) and qwen (0) do not ask again when a gateway dies in the middle of an answer.
    calls = ModelFacts(n_calls=3, last_error="gateway_died")
    assert ended(calls=calls, exit_code=exit_code, said="other") is Cause.MODEL_UNAVAILABLE
