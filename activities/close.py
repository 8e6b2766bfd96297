"""The last phase: keep what is there, end the box, settle. Also how a stopped or failed attempt ends."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog
from temporalio import activity

from activities.agent import agent_streams
from activities.attempt_boxes import end_boxes, give_up_boxes, keep_verifiers_box, tell_boxes_left
from activities.capture import Capture
from activities.failures import current_phase, is_transient
from activities.heartbeats import heartbeats
from activities.home_capture import keep_home
from activities.kept_streams import keep_streams
from activities.masks import key_secrets
from activities.metering import final_spend, lane_of, usage_reading
from activities.sandboxes.base import Box
from activities.signatures import CLOSE_TRIAL, SETTLE_TRIAL, CloseInput, Settled
from activities.step_records import begun_runs, ended_steps, rewards_of
from activities.traces.keep import keep_trace
from activities.trial_context import Hands, fence_of
from domain.causes import Cause
from domain.errors import EvolveError, ProviderUnreachable, SandboxDeath
from domain.outcomes import (
    NOTHING_SPENT,
    VERIFIER_TAIL_CHARS,
    AttemptEnd,
    agent_result,
    exception_names,
    exception_of,
    harbor_exception,
    judge_result,
    outcome_of,
)
from domain.retries import EndedAttempt, decide
from domain.retry_policy import RetryConfig
from domain.stats import LaneReading
from domain.steps import combined_rewards
from domain.vocabulary import AttemptPhase, TrialStatus
from store.attempt_spend import attempt_spend
from store.database import now
from store.fences import Fence, Fenced
from store.keys import KeyRole, has_key, revoke_keys
from store.record import PhaseChange, enter_phase
from store.settle import Settlement, retired, settle
from store.step_results import step_results
from store.streams import drop_streams

log = structlog.get_logger()

BOX_LEFT = "x_box_left"
"""Member of a trial whose box could not be ended: why. All else that the close does for it was done."""


class CloseTrial:
    """`close_trial`: whatever happened before, afterwards no box is left and the trial has settled."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=CLOSE_TRIAL.name)
    async def close_trial(self, close: CloseInput) -> Settled:
        async with heartbeats():
            current_phase.set(AttemptPhase.PERSIST)
            fence = fence_of(close, AttemptPhase.PERSIST)
            try:
                settled = await self._close(close, fence)
            except Fenced:
                if not await retired(self._hands.db, fence):
                    raise
                settled = await self._settled_before(close)
            await drop_streams(self._hands.db, close.trial_id, close.attempt_number)
        return settled

    async def _close(self, close: CloseInput, fence: Fence) -> Settled:
        members: dict[str, Any] = {}
        end = await self._end_of(close)
        if await enter_phase(self._hands.db, fence):
            runs = await begun_runs(self._hands, close)
            secrets = await key_secrets(
                self._hands.db, self._hands.secret, close.trial_id, close.attempt_number
            )
            end, members = await self._keep(close, Capture(self._hands, runs[-1], fence, secrets), end)
        await self._end_boxes(close, fence, members)
        return await self._settle(close, fence, end, members)

    async def _end_boxes(self, close: CloseInput, fence: Fence, members: dict[str, Any]) -> None:
        """Should no later try end them either, the trial settles all the same: what was kept is recorded."""
        try:
            await end_boxes(self._hands, close)
        except Exception as error:
            kept = {**members, BOX_LEFT: f"{type(error).__name__}: {error}"}
            await enter_phase(self._hands.db, fence, PhaseChange(members=kept))
            raise
        if activity.info().attempt > 1:
            members[BOX_LEFT] = None

    @activity.defn(name=SETTLE_TRIAL.name)
    async def settle_trial(self, close: CloseInput) -> Settled:
        """Without the box or its host: only the record. It comes after every try of `close_trial`."""
        fence = replace(fence_of(close, AttemptPhase.PERSIST), is_last_resort=True)
        try:
            end, members = await self._end_of(close), await self._left_out(close)
            if close.lost_host:
                await give_up_boxes(self._hands, close)
            elif close.unclosed:
                await tell_boxes_left(self._hands, close)
            return await self._settle(close, fence, end, members)
        except Fenced:
            if not await retired(self._hands.db, fence):
                raise
            return await self._settled_before(close)

    async def _left_out(self, close: CloseInput) -> dict[str, Any]:
        """What the close would have kept is not there, unless it came as far as the end of its boxes."""
        if close.lost_host:
            return {"x_left_out": [f"what was in its box: {close.lost_host}"]}
        if close.unclosed is None or (await self._record(close)).get(BOX_LEFT):
            return {}
        return {"x_left_out": [f"what was in its box: its close failed: {close.unclosed}"]}

    async def _settled_before(self, close: CloseInput) -> Settled:
        """The answer that got lost when an earlier try had retired the attempt."""
        policy = await self._policy(close)
        return Settled(
            status=TrialStatus.INFRASTRUCTURE_ERROR.value,
            retry_after_sec=policy.delay_sec(close.attempt_number),
        )

    async def _policy(self, close: CloseInput) -> RetryConfig:
        """The job's; none for one that was deleted."""
        try:
            return (await self._hands.load(close)).plan.retry
        except EvolveError:
            return RetryConfig()

    async def _settle(
        self, close: CloseInput, fence: Fence, end: AttemptEnd, members: dict[str, Any]
    ) -> Settled:
        outcome, policy = outcome_of(end), await self._policy(close)
        ended = _ended_attempt(close, outcome.status, exception_names(end))
        settlement = Settlement(
            outcome=outcome,
            exception=exception_of(end),
            members={
                **members,
                "agent_result": agent_result(end),
                "judge_result": judge_result(end),
                **_named(end),
                "live_spent_usd": None,
                "live_spend_at": None,
                "usage": await self._usage(close),
                **await ended_steps(self._hands, close, exception_of(end)),
            },
            failed_phase=_phase(close),
            signature=ended.signatures[-1],
            verdict=decide(policy, ended),
        )
        end_of_it = await settle(self._hands.db, fence, settlement)
        return Settled(
            status=end_of_it.status.value,
            reward=end_of_it.reward,
            retry_after_sec=policy.delay_sec(close.attempt_number) if end_of_it.is_retired else None,
        )

    async def _end_of(self, close: CloseInput) -> AttemptEnd:
        """How the attempt ended. Nothing of it may call a model any more, so its keys are revoked first."""
        agent, verifier, failure = close.agent, close.verifier, close.failure
        await revoke_keys(self._hands.db, close.trial_id, close.attempt_number)
        spend = await self._lane(close, "agent")
        if spend is None and (agent is not None or close.step):
            spend = NOTHING_SPENT
        return AttemptEnd(
            has_agent_ended=agent is not None,
            is_agent_timeout=agent.is_timeout if agent else False,
            agent_exit_code=agent.exit_code if agent else None,
            rewards=await self._rewards(close),
            verifier_problem=verifier.problem if verifier else None,
            is_verifier_timeout=verifier.is_timeout if verifier else False,
            verifier_exit_code=verifier.exit_code if verifier else None,
            unready=close.unready,
            failure=failure.message if failure else None,
            failure_code=failure.code if failure else None,
            is_cancelled=failure is not None and failure.kind == "cancelled",
            is_budget=failure is not None and failure.kind == "budget",
            is_incomplete=failure is not None and failure.kind == "incomplete",
            cause=Cause(agent.cause) if agent and agent.cause else None,
            agent_message=agent.message if agent else None,
            spend=spend,
            judge=await self._lane(close, "judge"),
        )

    async def _lane(self, close: CloseInput, role: KeyRole) -> LaneReading | None:
        """What a role of the attempt spent; None when it was given no key."""
        if not await has_key(self._hands.db, close.trial_id, close.attempt_number, role):
            return None
        return lane_of(await final_spend(self._hands.db, close.trial_id, close.attempt_number, role))

    async def _usage(self, close: CloseInput) -> dict[str, Any] | None:
        """UsageReading of an agent that had a key: provisional unless every call was measured."""
        if not await has_key(self._hands.db, close.trial_id, close.attempt_number, "agent"):
            return None
        spend = await attempt_spend(self._hands.db, close.trial_id, close.attempt_number, "agent")
        return usage_reading(spend, now())

    async def _rewards(self, close: CloseInput) -> dict[str, float] | None:
        """What the verifier left, or those of the steps together."""
        steps = await step_results(self._hands.db, close.trial_id)
        if steps:
            strategy = (await self._hands.load(close)).task.reward_strategy
            return combined_rewards(strategy, [rewards_of(step) for step in steps])
        return rewards_of(await self._record(close)) if close.verifier else None

    async def _record(self, close: CloseInput) -> dict[str, Any]:
        """Wire members of the trial so far; none of one that was deleted."""
        pool = await self._hands.db.pool()
        return await pool.fetchval("SELECT result FROM trials WHERE id = $1", close.trial_id) or {}

    async def _keep(
        self, close: CloseInput, capture: Capture, end: AttemptEnd
    ) -> tuple[AttemptEnd, dict[str, Any]]:
        """What cannot be kept is told, and never keeps the box from its end."""
        try:
            return await self._persist(close, capture, end)
        except (Fenced, ProviderUnreachable):
            raise
        except Exception as error:
            if is_transient(error):
                raise
            log.error("outputs could not be kept", trial=close.trial_id, exc_info=error)
            return end, {"x_left_out": [*capture.left_out, f"{type(error).__name__}: {error}"]}

    async def _persist(
        self, close: CloseInput, capture: Capture, end: AttemptEnd
    ) -> tuple[AttemptEnd, dict[str, Any]]:
        box = await self._box(close)
        if box is not None:
            if end.is_cancelled:
                with suppress(SandboxDeath):
                    await box.sweep(())
            await capture.keep_box(box)
            await keep_home(capture, box, close.harness.home)
        await keep_verifiers_box(self._hands, close, capture)
        runs = await begun_runs(self._hands, close)
        output = await keep_streams(capture)
        await keep_trace(capture, [agent_streams(run) for run in runs], close.harness.version)
        await capture.register()
        tail = output[-4 * VERIFIER_TAIL_CHARS :].decode(errors="replace")
        end = end.model_copy(update={"verifier_tail": tail})
        told = {"x_left_out": capture.left_out, "x_masked": capture.masked}
        return end, {name: value for name, value in told.items() if value}

    async def _box(self, close: CloseInput) -> Box | None:
        if close.box_id is None:
            return None
        try:
            return await self._hands.provider(close.provider).attach(close.box_id)
        except SandboxDeath:
            return None


def _ended_attempt(close: CloseInput, status: TrialStatus, names: tuple[str, ...]) -> EndedAttempt:
    failure = close.failure
    return EndedAttempt.model_validate(
        {
            "attempt_number": close.attempt_number,
            "status": status,
            "exception_names": names,
            "signatures": (*close.signatures, failure.signature if failure else None),
            # A box that may be alive still must have no successor beside it.
            "is_last": close.unclosed is not None or (failure.is_final if failure else False),
        }
    )


def _named(end: AttemptEnd) -> dict[str, str]:
    """Harbor's name of the exception, for what selects trials by it."""
    name = harbor_exception(end)
    return {} if name is None else {"x_harbor_exception": name}


def _phase(close: CloseInput) -> AttemptPhase | None:
    phase = close.failure.phase if close.failure else None
    try:
        return AttemptPhase(phase) if phase else None
    except ValueError:
        raise EvolveError(f"unknown phase {phase}") from None
