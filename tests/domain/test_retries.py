"""What the retry policy says about every way in which an attempt number can end."""

from __future__ import annotations

from typing import Any

import pytest

from domain.causes import CONSEQUENCES, INSTALL_FAILURES, Cause
from domain.outcomes import AttemptEnd, agent_metadata, exception_names, outcome_of
from domain.retries import BreakCircuit, EndedAttempt, RetryAfter, Settle, decide
from domain.retry_policy import DEFAULT_EXCLUDE_EXCEPTIONS, RetryConfig, RetryConfigInput
from domain.vocabulary import TrialStatus

FLEET = RetryConfigInput().resolve()


def failed(attempt_number: int = 1, **changes: Any) -> EndedAttempt:
    facts: dict[str, Any] = {
        "attempt_number": attempt_number,
        "status": TrialStatus.INFRASTRUCTURE_ERROR,
        "exception_names": ("InfrastructureError",),
        "signatures": (None,) * attempt_number,
    }
    return EndedAttempt.model_validate({**facts, **changes})


def policy(**given: Any) -> RetryConfig:
    return RetryConfigInput.model_validate(given).resolve()


def test_the_fleet_retries_an_infrastructure_failure_twice():
    verdicts = [decide(FLEET, failed(number)) for number in (1, 2, 3)]
    retry = RetryAfter(delay_sec=1.0, max_retries=2)
    assert verdicts == [retry, retry, Settle()]


@pytest.mark.parametrize("status", [s for s in TrialStatus if s is not TrialStatus.INFRASTRUCTURE_ERROR])
def test_nothing_else_is_retried(status: TrialStatus):
    assert decide(FLEET, failed(status=status)) == Settle()


def test_no_retries_means_none():
    assert decide(policy(max_retries=0), failed()) == Settle()


def test_what_could_not_end_otherwise_is_not_tried_again():
    assert decide(FLEET, failed(is_last=True)) == Settle()


@pytest.mark.parametrize(
    ("given", "is_retried"),
    [
        ({}, True),
        ({"include_exceptions": []}, True),
        ({"include_exceptions": ["InfrastructureError"]}, True),
        ({"include_exceptions": ["RateLimitError"]}, True),
        ({"include_exceptions": ["SomethingElse"]}, False),
        ({"exclude_exceptions": ["InfrastructureError"]}, False),
        ({"exclude_exceptions": ["RateLimitError"]}, False),
        ({"exclude_exceptions": ["SomethingElse"]}, True),
        ({"exclude_exceptions": None}, True),
        ({"include_exceptions": ["RateLimitError"], "exclude_exceptions": ["RateLimitError"]}, False),
        ({"include_exceptions": ["RateLimitError"], "exclude_exceptions": ["InfrastructureError"]}, False),
    ],
)
def test_filters_match_the_contracts_name_and_harbors_and_exclusion_wins(
    given: dict[str, Any], is_retried: bool
):
    names = ("InfrastructureError", "RateLimitError")
    verdict = decide(policy(**given), failed(exception_names=names))
    assert isinstance(verdict, RetryAfter) is is_retried


def test_the_default_set_excludes_by_harbors_name():
    names = ("InfrastructureError", "AgentAuthenticationError")
    assert decide(FLEET, failed(exception_names=names)) == Settle()
    assert isinstance(decide(policy(exclude_exceptions=None), failed(exception_names=names)), RetryAfter)


@pytest.mark.parametrize(
    ("given", "delays"),
    [
        ({}, [1.0, 1.0, 1.0]),
        ({"wait_multiplier": 2.0, "min_wait_sec": 3.0}, [3.0, 6.0, 12.0]),
        ({"wait_multiplier": 10.0, "max_wait_sec": 50.0}, [1.0, 10.0, 50.0]),
        ({"min_wait_sec": 90.0}, [60.0, 60.0, 60.0]),
        ({"wait_multiplier": 1e200, "max_wait_sec": 7.0}, [1.0, 7.0, 7.0]),
        ({"wait_multiplier": 0.0}, [1.0, 0.0, 0.0]),
    ],
)
def test_the_wait_grows_up_to_its_ceiling(given: dict[str, Any], delays: list[float]):
    assert [policy(**given).delay_sec(number) for number in (1, 2, 3)] == delays


def test_two_failures_in_a_row_of_one_signature_break_the_circuit():
    ended = failed(3, signatures=("stream_disconnect", "sandbox_death", "sandbox_death"))
    broken = decide(policy(max_retries=5), ended)
    assert broken == BreakCircuit(signature="sandbox_death", consecutive=2, max_retries=5, retries_unused=3)
    assert isinstance(broken, BreakCircuit)
    assert "3 of 5 retries unused" in broken.explain("the box is gone")


@pytest.mark.parametrize(
    "signatures",
    [
        ("sandbox_death", "stream_disconnect"),
        ("sandbox_death", None, "sandbox_death"),
        (None, None),
    ],
)
def test_other_signatures_do_not_break_it(signatures: tuple[Any, ...]):
    ended = failed(len(signatures), signatures=signatures)
    assert isinstance(decide(policy(max_retries=9), ended), RetryAfter)


def test_a_circuit_without_a_retry_left_is_only_a_settle():
    ended = failed(3, signatures=("sandbox_death",) * 3)
    assert decide(FLEET, ended) == Settle()


@pytest.mark.parametrize("cause", [c for c in Cause if not CONSEQUENCES[c].is_verified])
def test_every_cause_is_retried_by_the_fleet_as_its_table_says(cause: Cause):
    end = AttemptEnd(has_agent_ended=True, cause=cause)
    ended = failed(status=outcome_of(end).status, exception_names=exception_names(end))
    assert isinstance(decide(FLEET, ended), RetryAfter) is CONSEQUENCES[cause].is_retried


def test_a_box_that_died_after_the_agent_timed_out_is_not_taken_for_the_timeout():
    end = AttemptEnd(has_agent_ended=True, cause=Cause.TIMEOUT, failure="the box is gone")
    assert exception_names(end) == ("InfrastructureError",)
    assert "AgentTimeoutError" in DEFAULT_EXCLUDE_EXCEPTIONS


@pytest.mark.parametrize("code", sorted(INSTALL_FAILURES))
def test_an_agent_that_could_not_be_installed_goes_by_harbors_name_too(code: str):
    end = AttemptEnd(failure="libx.so.6 is not there", failure_code=code)
    assert exception_names(end) == ("InfrastructureError", "AgentSetupError")
    assert agent_metadata(end)["cause"] == "install"
    ended = failed(exception_names=exception_names(end))
    assert isinstance(decide(policy(include_exceptions=["AgentSetupError"]), ended), RetryAfter)
    assert decide(policy(include_exceptions=["RateLimitError"]), ended) == Settle()
    assert decide(policy(exclude_exceptions=["AgentSetupError"]), ended) == Settle()


def test_a_stop_during_an_install_is_a_stop():
    end = AttemptEnd(failure="stopped", failure_code="agent_install_failed", is_cancelled=True)
    assert exception_names(end) == ("CancelledError",)


def test_a_box_that_died_is_no_failed_install():
    end = AttemptEnd(failure="the box is gone", failure_code="infrastructure_failure")
    assert exception_names(end) == ("InfrastructureError",)
