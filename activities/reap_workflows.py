"""Jobs and trials that the store and Temporal tell apart: live here and gone there, or the reverse.

Only workflows of our own queue are looked at: a namespace may be shared.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.signatures import (
    JOB_WORKFLOW,
    SIGNAL_CANCEL,
    SIGNAL_HOST_LOST,
    TRIAL_WORKFLOW,
    LostHost,
)
from activities.trial_context import Hands
from domain.reaping import Leftover, LeftoverKind
from store.database import now
from store.hosts import lost_trials
from store.import_record import fail_import
from store.intents import IntentKind, add_intent
from store.leftovers import (
    SETTLED_GRACE,
    live_imports,
    live_jobs,
    live_trials,
    over_jobs,
    over_trials,
)
from store.record import cancel_job

IMPORT_ENDED_BY = "The import's workflow was ended from outside."
ENDED_BY = "The trial's workflow was ended from outside."
TERMINATE_AFTER = timedelta(hours=1)
"""A workflow that was cancelled has so long to go before it is terminated."""
_TRIAL_PREFIX = "trial/"


@dataclass(frozen=True)
class Temporal:
    """Temporal as the reaper sees it: its client, and the queue of our workflows."""

    client: Client
    queue: str

    async def status(self, workflow_id: str) -> WorkflowExecutionStatus | None:
        """None when there is no such workflow, or no longer."""
        try:
            return (await self.client.get_workflow_handle(workflow_id).describe()).status
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise


async def reap_jobs(hands: Hands, temporal: Temporal, *, is_dry: bool) -> list[Leftover]:
    """A job whose workflow never came to be is started; what an ended one left is cancelled."""
    reaped: list[Leftover] = []
    for job in await live_jobs(hands.db):
        status = await temporal.status(job["workflow_id"])
        if status == WorkflowExecutionStatus.RUNNING:
            continue
        if not is_dry and status is None:
            await _start_again(hands, job["id"])
        elif not is_dry:
            await _cancel(hands, temporal, job["id"], job["workflow_id"])
        why = (
            "it has no workflow: started again"
            if status is None
            else f"its workflow is {status.name}: what it left is cancelled"
        )
        reaped.append(Leftover(kind=LeftoverKind.JOB, subject=job["id"], why=why))
    return reaped


async def _start_again(hands: Hands, job_id: str) -> None:
    """The outbox delivers it, as it did at first."""
    async with hands.db.transaction() as connection:
        await connection.execute("UPDATE jobs SET workflow_id = $2 WHERE id = $1", job_id, f"job/{job_id}")
        await add_intent(connection, IntentKind.START_JOB, job_id)


async def _cancel(hands: Hands, temporal: Temporal, job_id: str, workflow_id: str) -> None:
    """Whoever ended the workflow wanted the end of the job: it runs once more to end what it left."""
    async with hands.db.transaction() as connection:
        await cancel_job(connection, job_id)
    with suppress(WorkflowAlreadyStartedError):
        await temporal.client.start_workflow(
            JOB_WORKFLOW,
            {"job_id": job_id},
            id=workflow_id,
            task_queue=temporal.queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            start_signal=SIGNAL_CANCEL,
            static_summary=workflow_id,
        )


async def reap_imports(hands: Hands, temporal: Temporal, *, is_dry: bool) -> list[Leftover]:
    """An import whose workflow never came to be is started; one whose workflow was ended has failed."""
    reaped: list[Leftover] = []
    for import_id in await live_imports(hands.db):
        status = await temporal.status(f"dataset-import/{import_id}")
        if status == WorkflowExecutionStatus.RUNNING:
            continue
        why = "it has no workflow: started again" if status is None else "its workflow was ended: failed"
        if not is_dry and status is None:
            async with hands.db.transaction() as connection:
                await add_intent(connection, IntentKind.START_IMPORT, import_id)
        elif not is_dry:
            failure = {"code": "import_failed", "message": IMPORT_ENDED_BY, "failures": []}
            await fail_import(hands.db, import_id, failure)
        reaped.append(Leftover(kind=LeftoverKind.IMPORT, subject=import_id, why=why))
    return reaped


async def reap_trials(hands: Hands, temporal: Temporal, *, is_dry: bool) -> list[Leftover]:
    """A trial that was under way and whose workflow is gone is closed, for a reason of its own."""
    reaped: list[Leftover] = []
    for trial in await live_trials(hands.db):
        workflow_id = f"{_TRIAL_PREFIX}{trial['id']}"
        if await temporal.status(workflow_id) == WorkflowExecutionStatus.RUNNING:
            continue
        # It may have settled since it was read, and only then ended.
        if not await live_trials(hands.db, trial["id"]):
            continue
        if not is_dry:
            await _close(temporal, trial, workflow_id)
        reaped.append(
            Leftover(kind=LeftoverKind.TRIAL, subject=trial["id"], why="its workflow is gone: closed")
        )
    return reaped


async def _close(temporal: Temporal, trial: Any, workflow_id: str) -> None:
    with suppress(WorkflowAlreadyStartedError):
        await temporal.client.start_workflow(
            TRIAL_WORKFLOW,
            {
                "job_id": trial["job_id"],
                "trial_id": trial["id"],
                "index": trial["index"],
                "job_workflow_id": trial["workflow_id"],
                "ended_by": ENDED_BY,
            },
            id=workflow_id,
            task_queue=temporal.queue,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=workflow_id,
        )


async def reap_lost(hands: Hands, temporal: Temporal, *, is_dry: bool) -> list[Leftover]:
    """A trial that waits for a dead host is told so, until it has settled without it."""
    reaped: list[Leftover] = []
    for row in await lost_trials(hands.db):
        why = why_lost(row)
        if is_dry or await tell_lost(temporal.client, row):
            told = f"{why}: told to end without its box"
            reaped.append(
                Leftover(kind=LeftoverKind.TRIAL, subject=row["trial_id"], why=told, host_id=row["host_id"])
            )
    return reaped


def why_lost(row: Any) -> str:
    """In words, of a row of `lost_trials`."""
    if row["since"] is None:
        return f"an operator dropped its host {row['host_id']}"
    away = f"its host {row['host_id']} is away since {row['since'].isoformat(timespec='seconds')}"
    return f"{away}, and another serves {row['provider']}"


async def tell_lost(client: Client, row: Any) -> bool:
    """Whether there was a workflow to tell; `reap_trials` looks after a trial that has none."""
    lost = LostHost(host_id=row["host_id"], attempt_number=row["attempt_number"], why=why_lost(row))
    try:
        await client.get_workflow_handle(f"{_TRIAL_PREFIX}{row['trial_id']}").signal(SIGNAL_HOST_LOST, lost)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


async def reap_workflows(hands: Hands, temporal: Temporal, *, is_dry: bool) -> list[Leftover]:
    """Workflows whose trial or job is over for a while, or is no more: cancelled, at last terminated."""
    started = await _running(temporal)
    trials = [each.removeprefix(_TRIAL_PREFIX) for each in started if each.startswith(_TRIAL_PREFIX)]
    over = {f"{_TRIAL_PREFIX}{each}": at for each, at in (await over_trials(hands.db, trials)).items()}
    over |= await over_jobs(hands.db, [each for each in started if not each.startswith(_TRIAL_PREFIX)])
    reaped: list[Leftover] = []
    for workflow_id, finished_at in over.items():
        since = finished_at or started[workflow_id]
        if now() - since < SETTLED_GRACE:
            continue
        is_terminated = await _is_cancel_old(temporal, workflow_id, since)
        if not is_dry:
            await _end(temporal, workflow_id, is_terminated=is_terminated)
        what = "has settled" if finished_at else "is no more"
        done = "terminated" if is_terminated else "cancelled"
        reaped.append(
            Leftover(kind=LeftoverKind.WORKFLOW, subject=workflow_id, why=f"its work {what}: {done}")
        )
    return reaped


async def _running(temporal: Temporal) -> dict[str, datetime]:
    """Our workflows of jobs and trials that run since a while, with when they started."""
    before = (now() - SETTLED_GRACE).isoformat()
    kinds = f"'{JOB_WORKFLOW}', '{TRIAL_WORKFLOW}', 'RegradeWorkflow'"
    query = (
        f"ExecutionStatus = 'Running' AND TaskQueue = '{temporal.queue}'"
        f" AND WorkflowType IN ({kinds}) AND StartTime < '{before}'"
    )
    return {found.id: found.start_time async for found in temporal.client.list_workflows(query)}


async def _is_cancel_old(temporal: Temporal, workflow_id: str, since: datetime) -> bool:
    """Whether it was asked to end before and had its time."""
    if now() - since < TERMINATE_AFTER:
        return False
    with suppress(RPCError):
        described = await temporal.client.get_workflow_handle(workflow_id).describe()
        return described.raw_description.workflow_extended_info.cancel_requested
    return False


async def _end(temporal: Temporal, workflow_id: str, *, is_terminated: bool) -> None:
    handle = temporal.client.get_workflow_handle(workflow_id)
    try:
        if is_terminated:
            await handle.terminate("its work has settled long ago")
        else:
            await handle.cancel()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:  # it ended by itself
            raise
