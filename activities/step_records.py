"""What is recorded of each step of a multi-step trial: its entry of `step_results` (contract 3.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from activities.metering import final_spend, lane_of
from activities.signatures import AgentEnd, AttemptRef, CloseInput
from activities.trial_context import Hands, TrialContext
from domain.causes import Cause
from domain.outcomes import NOTHING_SPENT, AttemptEnd, agent_result
from domain.trials import StepResult
from domain.vocabulary import ExceptionType
from store.attempt_spend import attempt_spend
from store.database import Database, now
from store.keys import has_key
from store.record import exception_info
from store.step_results import step_results

MEMBER = "step_results"
_OWN = frozenset(StepResult.model_fields)


async def members_of_step(db: Database, context: TrialContext, members: Mapping[str, Any]) -> dict[str, Any]:
    """The trial's members with which a step's are recorded: what an entry can hold goes into its entry.

    To be written under the step's fence: what is behind the step is not there yet.
    """
    position, step = context.attempt.step, context.step
    if position is None or step is None:
        return dict(members)
    earlier = (await step_results(db, context.attempt.trial_id))[: position + 1]
    own = {name: value for name, value in members.items() if name in _OWN}
    if len(earlier) <= position:
        earlier.append(StepResult(step_name=step.name).model_dump(mode="json"))
    results = [*earlier[:-1], {**earlier[-1], **own}]
    return {name: value for name, value in members.items() if name not in _OWN} | {MEMBER: results}


async def step_agent_result(db: Database, context: TrialContext, end: AgentEnd) -> dict[str, object] | None:
    """AgentResult of the step's agent, by what its own key has spent."""
    attempt = context.attempt
    spend = NOTHING_SPENT
    if context.arm.spends and await has_key(db, attempt.trial_id, attempt.attempt_number, "agent"):
        spend = lane_of(
            await final_spend(db, attempt.trial_id, attempt.attempt_number, "agent", context.step_name)
        )
    return agent_result(
        AttemptEnd(
            spend=spend,
            cause=Cause(end.cause) if end.cause else None,
            agent_exit_code=end.exit_code,
            is_agent_timeout=end.is_timeout,
        )
    )


async def begun_runs(hands: Hands, attempt: AttemptRef) -> list[TrialContext]:
    """Each step that was begun, or the attempt as a whole where there is none."""
    steps = range(len(await step_results(hands.db, attempt.trial_id)))
    attempts = [attempt.model_copy(update={"step": step}) for step in steps or (None,)]
    return [await hands.load(each) for each in attempts]


async def ended_steps(
    hands: Hands, close: CloseInput, exception: tuple[ExceptionType, str] | None
) -> dict[str, Any]:
    """The trial's members that say how its steps ended: what ended the attempt is its last step's exception.

    Nothing of a task without steps, or where no step was begun.
    """
    results = await step_results(hands.db, close.trial_id)
    if not results:
        return {}
    last = len(results) - 1 if close.step is None else close.step
    context = await hands.load(close.model_copy(update={"step": last}))
    members: dict[str, Any] = {}
    if last >= len(results) or results[last]["exception_info"] is None:
        members["exception_info"] = exception_info(exception, now())
    if close.agent is None and await _has_called(hands.db, context):
        members["agent_result"] = await step_agent_result(hands.db, context, AgentEnd())
    return await members_of_step(hands.db, context, members)


async def _has_called(db: Database, context: TrialContext) -> bool:
    """Whether the step's agent has called its model."""
    attempt = context.attempt
    spend = await attempt_spend(db, attempt.trial_id, attempt.attempt_number, "agent", context.step_name)
    return spend.n_calls > 0


def rewards_of(result: Mapping[str, Any]) -> dict[str, float] | None:
    """The rewards that a verifier left, in a result of a trial or of a step."""
    found = result.get("verifier_result")
    return found["rewards"] if found else None
