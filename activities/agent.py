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
from activities.silence import watching_silence
from activities.step_records import members_of_step, step_agent_result
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
from store.traces import prompt_seq

PROCESS = "agent"
_REFUSED: Mapping[str, str] = {str(kind): message for kind, message in MESSAGES.items()}


class RunAgent:
    """`run_agent`: re-attach first; the command is executed once whoever dies meanwhile."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=RUN_AGENT.name)
    async def run_agent(self, attempt: BoxedAttempt) -> AgentEnd:
        async with heartbeats():
            context = await self._hands.load(attempt)
            await enter(self._hands, attempt, AttemptPhase.AGENT)
            prompted_at = await self._tell_prompt(context)
            box = await self._hands.provider(attempt.provider).attach(attempt.box_id)
            launch = context.harness.launch(
                await harness_context(self._hands, context, attempt.harness, box.workdir)
            )
            windows, started_at, finished_at = Windows(), now(), None
            end = AgentEnd()
            if launch is not None:
                status, report = await self._run(attempt, context, launch, box, prompted_at)
                started_at, finished_at = status.started_at or started_at, status.finished_at
                end = await self._end(context, status, report)
            windows.close("agent_execution", started_at, finished_at)
            members = await self._members(context, end, windows)
            await enter(self._hands, attempt, AttemptPhase.AGENT, PhaseChange(members=members))
        return end

    async def _members(self, context: TrialContext, end: AgentEnd, windows: Windows) -> dict[str, Any]:
        if context.step is None:
            return windows.members
        result = await step_agent_result(self._hands.db, context, end)
        return await members_of_step(self._hands.db, context, {**windows.members, "agent_result": result})

    async def _tell_prompt(self, context: TrialContext) -> int:
        """The instruction into the trace, behind what earlier steps left there; returns its seq."""
        prompt: dict[str, Any] = {"_prompt": {"text": context.task.instruction or ""}}
        if context.step is not None:
            prompt["step"] = context.step_name
        db, attempt = self._hands.db, context.attempt
        seq = await prompt_seq(db, attempt.trial_id, attempt.attempt_number, attempt.step or 0)
        await add_trace_events(db, attempt.trial_id, attempt.attempt_number, [(seq, "prompt", prompt)])
        return seq

    async def _run(
        self, attempt: BoxedAttempt, context: TrialContext, launch: Launch, box: Box, prompted_at: int
    ) -> tuple[ExitStatus, StreamReport | None]:
        # Taken before the agent starts, kept outside its box: what a sweep leaves alone.
        keep = await self._baseline(context, box)
        await process.start(box, self._spec(attempt, context, launch, box))
        db, fence = self._hands.db, fence_of(attempt, AttemptPhase.AGENT)
        parser = PARSERS.get(context.harness.parser_name or "")
        streams, trace = agent_streams(context), None
        if parser is not None:
            trace = await LiveTrace.open(db, fence, parser, streams, first_seq=prompted_at + 1)
        name = TrialName(
            trial_id=attempt.trial_id, task_name=context.task_name, attempt_number=attempt.attempt_number
        )
        async with (
            watching_spend(db, fence, name),
            watching_silence(db, fence, self._hands.settings.silent_after_sec) as silence,
        ):
            secrets = await key_secrets(db, self._hands.secret, attempt.trial_id, attempt.attempt_number)
            followed = Followed(context.process_name(PROCESS), streams, secrets)
            status = await follow_into_store(db, box, fence, followed, trace, silence.heard)
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
            spend = await final_spend(
                self._hands.db, attempt.trial_id, attempt.attempt_number, "agent", context.step_name
            )
            facts = facts.model_copy(update={"model": model_facts(spend, is_later_step=bool(attempt.step))})
        cause = cause_of(facts)
        if cause is Cause.BUDGET:
            refused_by = facts.model.last_refusal if facts.model else None
            said = budget_message(refused_by or "", _REFUSED.get(refused_by or "", "a budget is spent up"))
        return AgentEnd(
            exit_code=status.exit_code, is_timeout=status.is_deadline, cause=cause.value, message=said or None
        )

    def _spec(self, attempt: BoxedAttempt, context: TrialContext, launch: Launch, box: Box) -> ProcessSpec:
        return ProcessSpec(
            name=context.process_name(PROCESS),
            argv=launch.argv,
            user=attempt.harness.user,
            cwd=box.workdir,
            env={**resolve_env(context.task.env), **launch.env},
            stdin=launch.stdin,
            deadline_sec=attempt.timeout_sec,
        )

    async def _baseline(self, context: TrialContext, box: Box) -> Collection[ProcessKey]:
        key = baseline_key(context)
        try:
            stored = await self._hands.blobs.get(key)
        except FileNotFoundError:
            stored = json.dumps([[p.pid, p.start_ticks] for p in await box.processes()]).encode()
            await self._hands.blobs.put(key, stored)
        return {(pid, ticks) for pid, ticks in json.loads(stored)}


def baseline_key(context: TrialContext) -> str:
    """The blob that holds what ran in the box before the agent."""
    attempt = context.attempt
    return f"trials/{attempt.trial_id}/{attempt.attempt_number}/{context.place('baseline.json')}"


def agent_streams(context: TrialContext) -> dict[Stream, str]:
    """The names that an agent's output is stored under."""
    return {"out": context.place("agent/stdout"), "err": context.place("agent/stderr")}
