"""The agent phase: started once, followed by whoever lives, swept at its deadline."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from temporalio import activity

from activities.following import Followed, follow_into_store
from activities.harnesses.base import Launch
from activities.heartbeats import heartbeats
from activities.masks import key_secrets
from activities.metering import final_spend, model_facts, watching_spend
from activities.model_access import budget_message, harness_context
from activities.open_box import Windows, enter
from activities.sandboxes import process
from activities.sandboxes.base import Box, ProcessKey
from activities.sandboxes.process import ExitStatus, ProcessSpec
from activities.sandboxes.process_poll import Stream
from activities.signatures import RUN_AGENT, AgentEnd, BoxedAttempt
from activities.traces.base import STRAY_CHARS, StreamReport
from activities.traces.live import LiveTrace
from activities.traces.roster import PARSERS
from activities.trial_context import Hands, TrialContext, fence_of
from domain.causes import AgentFacts, Cause, cause_of
from domain.events import TrialName
from domain.tasks import resolve_env
from domain.vocabulary import AttemptPhase
from store.database import now
from store.keys import revoke_keys
from store.record import PhaseChange
from store.spend import MESSAGES
from store.streams import add_trace_events

PROCESS = "agent"
_REFUSED: Mapping[str, str] = {str(kind): message for kind, message in MESSAGES.items()}
STREAMS: dict[Stream, str] = {"out": "agent/stdout", "err": "agent/stderr"}


class RunAgent:
    """`run_agent`: re-attach first; the command is executed once whoever dies meanwhile."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=RUN_AGENT.name)
    async def run_agent(self, attempt: BoxedAttempt) -> AgentEnd:
        async with heartbeats():
            context = await self._hands.load(attempt)
            await enter(self._hands, attempt, AttemptPhase.AGENT)
            await self._tell_prompt(context)
            box = await self._hands.provider(attempt.provider).attach(attempt.box_id)
            launch = context.harness.launch(
                await harness_context(self._hands, context, attempt.harness, box.workdir)
            )
            windows, started_at = Windows(), now()
            end = AgentEnd()
            if launch is not None:
                status, report = await self._run(attempt, context, launch, box)
                started_at = status.started_at or started_at
                end = await self._end(context, status, report)
            windows.close("agent_execution", started_at)
            await enter(self._hands, attempt, AttemptPhase.AGENT, PhaseChange(members=windows.members))
        return end

    async def _tell_prompt(self, context: TrialContext) -> None:
        prompt: dict[str, Any] = {"_prompt": {"text": context.task.instruction or ""}}
        attempt = context.attempt
        await add_trace_events(
            self._hands.db, attempt.trial_id, attempt.attempt_number, [(1, "prompt", prompt)]
        )

    async def _run(
        self, attempt: BoxedAttempt, context: TrialContext, launch: Launch, box: Box
    ) -> tuple[ExitStatus, StreamReport | None]:
        # Taken before the agent starts, kept outside its box: what a sweep leaves alone.
        keep = await self._baseline(attempt, box)
        await process.start(box, self._spec(attempt, context, launch, box))
        db, fence = self._hands.db, fence_of(attempt, AttemptPhase.AGENT)
        parser = PARSERS.get(context.harness.parser_name or "")
        trace = None if parser is None else await LiveTrace.open(db, fence, parser, STREAMS)
        name = TrialName(
            trial_id=attempt.trial_id, task_name=context.task_name, attempt_number=attempt.attempt_number
        )
        async with watching_spend(db, fence, name):
            secrets = await key_secrets(db, self._hands.secret, attempt.trial_id, attempt.attempt_number)
            status = await follow_into_store(db, box, fence, Followed(PROCESS, STREAMS, secrets), trace)
        if status.is_deadline:
            await box.sweep(keep)
        await revoke_keys(db, attempt.trial_id, attempt.attempt_number, "agent")
        if trace is None:
            return status, None
        report = await trace.finish()
        report.stray_text = report.stray_text or trace.stderr_end[-STRAY_CHARS:]
        return status, report

    async def _end(self, context: TrialContext, status: ExitStatus, report: StreamReport | None) -> AgentEnd:
        """How it ended, and why: the gateway's word outranks the process's, and that the harness's own."""
        attempt = context.attempt
        facts = AgentFacts(
            exit_code=status.exit_code,
            is_timeout=status.is_deadline,
            must_call=context.arm.spends and report is not None,
            said=report.error.kind if report and report.error else None,
        )
        said = (report.error.message if report.error else report.stray_text) if report else ""
        if context.arm.spends:
            spend = await final_spend(self._hands.db, attempt.trial_id, attempt.attempt_number, "agent")
            facts = facts.model_copy(update={"model": model_facts(spend)})
        cause = cause_of(facts)
        if cause is Cause.BUDGET:
            refused_by = facts.model.last_refusal if facts.model else None
            said = budget_message(refused_by or "", _REFUSED.get(refused_by or "", "a budget is spent up"))
        return AgentEnd(
            exit_code=status.exit_code, is_timeout=status.is_deadline, cause=cause.value, message=said or None
        )

    def _spec(self, attempt: BoxedAttempt, context: TrialContext, launch: Launch, box: Box) -> ProcessSpec:
        return ProcessSpec(
            name=PROCESS,
            argv=launch.argv,
            user=attempt.harness.user,
            cwd=box.workdir,
            env={**resolve_env(context.task.env), **launch.env},
            stdin=launch.stdin,
            deadline_sec=attempt.timeout_sec,
        )

    async def _baseline(self, attempt: BoxedAttempt, box: Box) -> Collection[ProcessKey]:
        key = baseline_key(attempt.trial_id, attempt.attempt_number)
        try:
            stored = await self._hands.blobs.get(key)
        except FileNotFoundError:
            stored = json.dumps([[p.pid, p.start_ticks] for p in await box.processes()]).encode()
            await self._hands.blobs.put(key, stored)
        return {(pid, ticks) for pid, ticks in json.loads(stored)}


def baseline_key(trial_id: str, attempt_number: int) -> str:
    """The blob that holds what ran in the box before the agent."""
    return f"trials/{trial_id}/{attempt_number}/baseline.json"
