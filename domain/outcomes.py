"""From how agent and verifier ended to what a trial is: one place, pure.

The verifier's word decides; an agent that failed or ran out of time is scored on what it left, with its
exception beside the reward (contract 4.1, 4.2, 6.4). No failure becomes a zero.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from domain.causes import CONSEQUENCES, INSTALL_FAILURES, Cause
from domain.stats import LaneReading, TokenCounts, TrialOutcome, primary_reward
from domain.vocabulary import ExceptionType, SpendSource, TrialStatus

VERIFIER_TAIL_CHARS = 4000  # contract 5: "Verifier tail in exception"


NOTHING_SPENT = LaneReading(
    tokens=TokenCounts(n_input_tokens=0, n_cache_tokens=0, n_output_tokens=0),
    cost_nanos=0,
    source=SpendSource.MEASURED,
)
"""Of an agent that calls no model: measured, and 0."""


class AttemptEnd(BaseModel):
    """What is known when an attempt number is over.

    `rewards` None with `verifier_problem` None means that no verifier ran. `failure` is a message that
    ended the attempt without a verdict, `failure_code` its error's where it has one; `is_cancelled` tells
    a stop from an infrastructure failure, and `is_budget` a budget above the trial, `is_incomplete` what
    the harness cannot take up. `cause` is why the agent ended. A lane that never ran is None.
    """

    model_config = ConfigDict(frozen=True)

    has_agent_ended: bool = False
    is_agent_timeout: bool = False
    agent_exit_code: int | None = None
    rewards: dict[str, float] | None = None
    verifier_problem: str | None = None
    unready: str | None = None
    """Why the agent of a step could not start: what earlier steps came to is scored all the same."""
    is_verifier_timeout: bool = False
    verifier_exit_code: int | None = None
    verifier_tail: str = ""
    failure: str | None = None
    failure_code: str | None = None
    is_cancelled: bool = False
    is_budget: bool = False
    is_incomplete: bool = False
    cause: Cause | None = None
    agent_message: str | None = None
    spend: LaneReading | None = None
    judge: LaneReading | None = None


def exception_of(end: AttemptEnd) -> tuple[ExceptionType, str] | None:
    """The exception that a trial carries, or None."""
    if end.is_cancelled:
        return ExceptionType.CANCELLED, end.failure or "The trial was stopped."
    if end.failure is not None:
        if end.is_incomplete:
            return ExceptionType.INCOMPLETE, end.failure
        kind = ExceptionType.USAGE_LIMIT if end.is_budget else ExceptionType.INFRASTRUCTURE
        return kind, end.failure
    if end.unready is not None:
        return None if end.rewards is not None else (ExceptionType.INFRASTRUCTURE, end.unready)
    consequence = CONSEQUENCES[end.cause] if end.cause else None
    if consequence is not None and consequence.exception is not None:
        return consequence.exception, _agent_message(end)
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


def _agent_message(end: AttemptEnd) -> str:
    """Why the agent's run counts for nothing, in one sentence and the words that it ended with."""
    assert end.cause is not None
    if end.cause is Cause.BUDGET:
        return end.agent_message or _WHY[end.cause]
    return f"{_WHY[end.cause]}: {end.agent_message}" if end.agent_message else _WHY[end.cause]


_WHY = {
    Cause.BUDGET: "[agent-phase:budget_exhausted] other: a budget is spent up",
    Cause.CAP_TOO_LOW: "the spend cap admits not even one call of the model (--max-trial-spend)",
    Cause.AUTH: "the model's provider refused the platform's key, or there is none",
    Cause.MODEL_NOT_FOUND: "the model's provider does not serve the model",
    Cause.RATE_LIMIT: "the model's provider limited the rate of calls, and the agent gave up",
    Cause.MODEL_UNAVAILABLE: "the model's provider did not answer, and the agent gave up",
    Cause.NO_MODEL_CALL: "the agent ended without a single call to its model",
    Cause.INSTALL: "the agent could not be installed",
}


def outcome_of(end: AttemptEnd) -> TrialOutcome:
    """Status, rewards and spend. Unknown spend is None: an attempt whose agent never started has none."""
    exception = exception_of(end)
    is_scored = exception is None
    rewards = end.rewards if is_scored else None
    return TrialOutcome(
        status=TrialStatus.SCORED if exception is None else _STATUS[exception[0]],
        reward=primary_reward(rewards),
        rewards=rewards,
        has_exception=exception is not None,
        tokens=end.spend.tokens if end.spend else TokenCounts(),
        judge_tokens=end.judge.tokens if end.judge else TokenCounts(),
        cost_nanos=end.spend.cost_nanos if end.spend else None,
        judge_cost_nanos=end.judge.cost_nanos if end.judge else None,
        spend_source=end.spend.source if end.spend else None,
        judge_spend_source=end.judge.source if end.judge else None,
    )


def agent_metadata(end: AttemptEnd) -> dict[str, object]:
    """How the agent's run ended: facts beside the score.

    `{exit_code, timed_out, cause, exception}`: the cause is a word of `domain.causes`, the exception its
    name in Harbor, both null where nothing is known.
    """
    cause = end.cause or _cause_of_exception(end)
    consequence = CONSEQUENCES[cause] if cause else None
    return {
        "exit_code": end.agent_exit_code,
        "timed_out": end.is_agent_timeout,
        "cause": cause.value if cause else None,
        "exception": consequence.harbor_name if consequence else None,
    }


def agent_result(end: AttemptEnd) -> dict[str, object] | None:
    """AgentResult of contract 3.8; null until the agent was executed.

    Its cost is what was measured; `spend_source` beside it says whether that is all.
    """
    if end.spend is None:
        return None
    return {
        **end.spend.wire(),
        "rollout_details": None,
        "metadata": agent_metadata(end),
    }


def exception_names(end: AttemptEnd) -> tuple[str, ...]:
    """What a retry policy matches: the contract's type, and Harbor's where the cause is the exception."""
    exception, harbor_name = exception_of(end), harbor_exception(end)
    if exception is None:
        return ()
    return (exception[0].value,) if harbor_name is None else (exception[0].value, harbor_name)


def harbor_exception(end: AttemptEnd) -> str | None:
    """What Harbor calls the exception that the trial carries; None without one, or without a name."""
    exception, cause = exception_of(end), _cause_of_exception(end)
    if exception is None or cause is None or CONSEQUENCES[cause].exception is not exception[0]:
        return None
    return CONSEQUENCES[cause].harbor_name


def _cause_of_exception(end: AttemptEnd) -> Cause | None:
    """A failure of the attempt is not the agent's end, but may be that it could not be installed."""
    if end.failure is None:
        return end.cause
    return Cause.INSTALL if end.failure_code in INSTALL_FAILURES else None


def judge_result(end: AttemptEnd) -> dict[str, object] | None:
    """JudgeResult of contract 3.8; null without a judge."""
    return None if end.judge is None else end.judge.wire()


def _with_tail(message: str, end: AttemptEnd) -> str:
    tail = end.verifier_tail[-VERIFIER_TAIL_CHARS:]
    return f"{message}\n\n{tail}" if tail else message
