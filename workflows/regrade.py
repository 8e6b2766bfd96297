"""The story of a trial of a regrade: prepare → verifier → close. No agent runs."""

from __future__ import annotations

import asyncio

from temporalio import workflow

from workflows import names, options
from workflows.trial import TrialWorkflow

with workflow.unsafe.imports_passed_through():
    from activities import signatures as act
    from activities.signatures import PlacedAttempt, Placement
    from workflows.inputs import TrialInput


@workflow.defn(name=names.REGRADE_WORKFLOW)
class RegradeWorkflow(TrialWorkflow):
    """A trial whose attempts are a verifier alone, over what another trial's verifier judged.

    Attempt numbers, waits, the close and the job's being told are those of any trial.
    """

    @workflow.run
    async def run(self, start: TrialInput) -> act.Settled:
        return await super().run(start)

    async def _run_attempt(self) -> None:
        placement = self._progress.placement = await self._place()
        if placement.is_settled:
            return
        if workflow.cancellation_reason() is not None:
            raise asyncio.CancelledError
        self._progress.verifier = await self._judge(placement)

    async def _judge(self, placement: Placement) -> act.VerifierEnd:
        """As often as the provider has no capacity for the verifier's box."""
        while True:
            placed = PlacedAttempt(
                **self._attempt.model_dump(), provider=placement.provider, host_id=placement.host_id
            )
            end = await self._unless_full(act.REGRADE_TRIAL, placed, options.FOLLOW)
            if end is not None:
                return end
