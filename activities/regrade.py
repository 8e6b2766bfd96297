"""A trial of a regrade: a separate verifier's fresh box, over what another trial's verifier judged."""

from __future__ import annotations

from typing import Any

from temporalio import activity

from activities.open_box import enter
from activities.separate_verifier import SeparateVerifier
from activities.signatures import REGRADE_TRIAL, AgentEnd, PlacedAttempt, VerifierEnd, VerifierInput
from activities.trial_context import Hands, TrialContext
from activities.verifier import RunVerifier
from domain.errors import EvolveError
from domain.verifier_inputs import VerifierInputs
from domain.vocabulary import AttemptPhase
from store.hosts import mark_ending
from store.record import PhaseChange
from store.verifier_inputs import MEMBER

_SOURCE = "SELECT s.result FROM trials t JOIN trials s ON s.id = t.source_trial_id WHERE t.id = $1"


class RegradeTrial(RunVerifier):
    """`regrade_trial`: as `run_verifier`, but that no agent's box comes before."""

    @activity.defn(name=REGRADE_TRIAL.name)
    async def regrade_trial(self, attempt: PlacedAttempt) -> VerifierEnd:
        context = await self._hands.load(attempt)
        await enter(
            self._hands, attempt, AttemptPhase.VERIFY, PhaseChange(members=await self._facts(attempt))
        )
        verify = VerifierInput(
            **attempt.model_dump(), box_id="", timeout_sec=context.verifier_timeout_sec, agent=AgentEnd()
        )
        return await self.run_verifier(verify)

    async def _facts(self, attempt: PlacedAttempt) -> dict[str, Any]:
        """What is known before the box: where it is made, and which agent's work is judged."""
        source = await source_result(self._hands, attempt.trial_id)
        told = {name: source.get(name) for name in ("agent_version", "model_provider")}
        return {"sandbox_provider": attempt.provider, "verifier_environment_mode": "separate", **told}

    def _separate(self, context: TrialContext, attempt: VerifierInput) -> SeparateVerifier:
        return _RecordedVerifier(self._hands, context, attempt)


class _RecordedVerifier(SeparateVerifier):
    """Under the network policy that its source ran with, whatever the tests that judge now declare."""

    async def recorded(self) -> VerifierInputs:
        """What the source's verifier judged."""
        found = (await source_result(self._hands, self._attempt.trial_id)).get(MEMBER)
        if found is None:
            raise EvolveError(
                "what the trial's source left to judge is gone", code="regrade_source_ineligible"
            )
        inputs = VerifierInputs.model_validate(found)
        self._place = self._place.model_copy(update={"network": inputs.network})
        return inputs

    async def _end_agents_box(self) -> None:
        """There is none; the room that was placed for it is the verifier's."""
        await mark_ending(self._hands.db, self._agents_name)


async def source_result(hands: Hands, trial_id: str) -> dict[str, Any]:
    """The record of the trial that a derived one was made of; empty when it was deleted."""
    pool = await hands.db.pool()
    return await pool.fetchval(_SOURCE, trial_id) or {}
