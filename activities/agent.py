"""The agent phase: started once, followed by whoever lives, swept at its deadline."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from temporalio import activity

from activities.following import Followed, follow_into_store
from activities.harnesses.base import Launch
from activities.heartbeats import heartbeats
from activities.open_box import Windows, enter
from activities.sandboxes import process
from activities.sandboxes.base import Box, ProcessKey
from activities.sandboxes.process import ExitStatus, ProcessSpec
from activities.signatures import RUN_AGENT, AgentEnd, BoxedAttempt
from activities.trial_context import Hands, TrialContext, fence_of
from domain.tasks import resolve_env
from domain.vocabulary import AttemptPhase
from store.database import now
from store.record import PhaseChange
from store.streams import add_trace_events

PROCESS = "agent"
STREAMS = {"out": "agent/stdout", "err": "agent/stderr"}


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
            launch = context.harness.launch(await self._hands.harness_context(context))
            windows, started_at = Windows(), now()
            end = AgentEnd()
            if launch is not None:
                status = await self._run(attempt, context, launch)
                started_at = status.started_at or started_at
                end = AgentEnd(exit_code=status.exit_code, is_timeout=status.is_deadline)
            windows.close("agent_execution", started_at)
            await enter(self._hands, attempt, AttemptPhase.AGENT, PhaseChange(members=windows.members))
        return end

    async def _tell_prompt(self, context: TrialContext) -> None:
        prompt: dict[str, Any] = {"_prompt": {"text": context.task.instruction or ""}}
        attempt = context.attempt
        await add_trace_events(
            self._hands.db, attempt.trial_id, attempt.attempt_number, [(1, "prompt", prompt)]
        )

    async def _run(self, attempt: BoxedAttempt, context: TrialContext, launch: Launch) -> ExitStatus:
        box = await self._hands.provider(attempt.provider).attach(attempt.box_id)
        # Taken before the agent starts, kept outside its box: what a sweep leaves alone.
        keep = await self._baseline(attempt, box)
        await process.start(box, self._spec(context, launch, box, attempt.timeout_sec))
        fence = fence_of(attempt, AttemptPhase.AGENT)
        status = await follow_into_store(self._hands.db, box, fence, Followed(PROCESS, STREAMS))
        if status.is_deadline:
            await box.sweep(keep)
        return status

    def _spec(self, context: TrialContext, launch: Launch, box: Box, timeout_sec: float) -> ProcessSpec:
        return ProcessSpec(
            name=PROCESS,
            argv=launch.argv,
            user=context.task.agent_user,
            cwd=box.workdir,
            env={**resolve_env(context.task.env), **launch.env},
            stdin=launch.stdin,
            deadline_sec=timeout_sec,
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
