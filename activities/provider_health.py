"""What a provider's breaker hears and says: reports of trials to its workflow, its state to the store."""

from __future__ import annotations

from temporalio import activity
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from activities.signatures import (
    COUNT_GOOD_CREATES,
    PROVIDER_WORKFLOW,
    RELEASE_PROBE,
    REPORT_CREATE,
    SIGNAL_CREATE_ENDED,
    WRITE_HEALTH,
    CreateReport,
    GoodCreates,
    HealthToWrite,
    Nothing,
    PlacedAttempt,
    ProviderReport,
    ProviderWindow,
)
from activities.trial_context import Hands
from store.database import now
from store.provider_health import count_good_creates, release_probe, write_health


class ProviderHealthActivities:
    """Short, and on the workflow's own queue."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=REPORT_CREATE.name)
    async def report_create(self, report: CreateReport) -> Nothing:
        """Signal the provider's workflow, which runs only while there is something to hear."""
        context = await self._hands.load(report)
        heard = ProviderReport(
            trial_id=report.trial_id,
            task=f"{context.version_id}/{context.task_name}",
            at=now(),
            problem=report.problem,
        )
        workflow_id = f"provider/{report.provider}"
        await activity.client().start_workflow(
            PROVIDER_WORKFLOW,
            {"provider": report.provider},
            id=workflow_id,
            task_queue=activity.info().task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            start_signal=SIGNAL_CREATE_ENDED,
            start_signal_args=[heard],
            static_summary=workflow_id,
        )
        return Nothing()

    @activity.defn(name=RELEASE_PROBE.name)
    async def release(self, probe: PlacedAttempt) -> Nothing:
        """Short, and local to the workflow's worker."""
        await release_probe(self._hands.db, probe.provider, probe.trial_id)
        return Nothing()

    @activity.defn(name=COUNT_GOOD_CREATES.name)
    async def count_good(self, window: ProviderWindow) -> GoodCreates:
        """How many boxes were made in spite of the failures."""
        return GoodCreates(n=await count_good_creates(self._hands.db, window.provider, window.since))

    @activity.defn(name=WRITE_HEALTH.name)
    async def write(self, health: HealthToWrite) -> Nothing:
        """Let dispatch see the breaker."""
        await write_health(self._hands.db, health.provider, health.breaker)
        return Nothing()
