"""From how agent and verifier ended to what a trial is: one place, pure.

The verifier's word decides; an agent that failed or ran out of time is scored on what it left, with its
exception beside the reward (contract 4.1, 4.2, 6.4). No failure becomes a zero.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from domain.stats import TokenCounts, TrialOutcome, primary_reward
from domain.vocabulary import ExceptionType, SpendSource, TrialStatus

VERIFIER_TAIL_CHARS = 4000  # contract 5: "Verifier tail in exception"


class AttemptEnd(BaseModel):
    """What is known when an attempt number is over.

    `rewards` None with `verifier_problem` None means that no verifier ran. `failure` is a message that
    ended the attempt without a verdict; `is_cancelled` tells a stop from an infrastructure failure.
    """

    model_config = ConfigDict(frozen=True)

    has_agent_ended: bool = False
    is_agent_timeout: bool = False
    agent_timeout_sec: float | None = None
    agent_exit_code: int | None = None
    rewards: dict[str, float] | None = None
    verifier_problem: str | None = None
    is_verifier_timeout: bool = False
    verifier_exit_code: int | None = None
    verifier_tail: str = ""
    failure: str | None = None
    is_cancelled: bool = False


def exception_of(end: AttemptEnd) -> tuple[ExceptionType, str] | None:
    """The exception that a trial carries, or None."""
    if end.is_cancelled:
        return ExceptionType.CANCELLED, end.failure or "The trial was stopped."
    if end.failure is not None:
        return ExceptionType.INFRASTRUCTURE, end.failure
    if end.is_verifier_timeout:
        return ExceptionType.SCORING, _with_tail("the verifier ran past its timeout and was killed", end)
    if end.verifier_problem is not None:
        code = f"; its exit code was {end.verifier_exit_code}" if end.verifier_exit_code else ""
        return ExceptionType.SCORING, _with_tail(end.verifier_problem + code, end)
    if end.rewards is None:
        return ExceptionType.INCOMPLETE, "No verdict was recorded."
    return None


_STATUS = {
    ExceptionType.CANCELLED: TrialStatus.CANCELLED,
    ExceptionType.INFRASTRUCTURE: TrialStatus.INFRASTRUCTURE_ERROR,
    ExceptionType.SCORING: TrialStatus.SCORING_ERROR,
    ExceptionType.INCOMPLETE: TrialStatus.INDETERMINATE,
    ExceptionType.USAGE_LIMIT: TrialStatus.BUDGET,
}


def outcome_of(end: AttemptEnd) -> TrialOutcome:
    """Status, rewards and spend. An agent of this release makes no metered call: it measured 0."""
    exception = exception_of(end)
    is_scored = exception is None
    rewards = end.rewards if is_scored else None
    return TrialOutcome(
        status=TrialStatus.SCORED if exception is None else _STATUS[exception[0]],
        reward=primary_reward(rewards),
        rewards=rewards,
        has_exception=exception is not None,
        tokens=TokenCounts(n_input_tokens=0, n_cache_tokens=0, n_output_tokens=0)
        if end.has_agent_ended
        else TokenCounts(),
        cost_nanos=0 if end.has_agent_ended else None,
        spend_source=SpendSource.MEASURED if end.has_agent_ended else None,
    )


def agent_metadata(end: AttemptEnd) -> dict[str, object]:
    """How the agent's process ended: facts beside the score, `{exit_code, timed_out}`."""
    return {"exit_code": end.agent_exit_code, "timed_out": end.is_agent_timeout}


def _with_tail(message: str, end: AttemptEnd) -> str:
    tail = end.verifier_tail[-VERIFIER_TAIL_CHARS:]
    return f"{message}\n\n{tail}" if tail else message
