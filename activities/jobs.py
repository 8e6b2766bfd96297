"""A job's own activities: accept, look for the silent, cancel, finish."""

from __future__ import annotations

from temporalio import activity
from temporalio.client import WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from activities import searching
from activities.heartbeats import heartbeats
from activities.signatures import (
    ACCEPT_JOB,
    CANCEL_JOB,
    CANCEL_UNSTARTED,
    FIND_SILENT,
    FINISH_JOB,
    AcceptInput,
    JobEnd,
    JobIndexes,
    JobRef,
    JobStart,
    Nothing,
    Silent,
)
from activities.trial_context import Hands
from domain.errors import EvolveError
from domain.jobs import JobCreate, JobPlan
from domain.requests import parse_json_object, parse_request
from domain.vocabulary import TRIAL_TERMINAL, JobStatus
from store import record
from store.accept import Origin, accept_job
from store.accounts import caller_of_owner


class Jobs:
    """Short, and on the workflow's own queue."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=ACCEPT_JOB.name)
    async def accept(self, accept: AcceptInput) -> JobStart:
        """A job that the API accepted is only set running; any other goes through the same `accept`."""
        # Its rows may be many, or locked by others.
        async with heartbeats():
            return await self._accept(accept)

    async def _accept(self, accept: AcceptInput) -> JobStart:
        if accept.request_json is not None:
            caller = await caller_of_owner(self._hands.db, accept.owner)
            body = parse_json_object(accept.request_json.encode())
            request = parse_request(JobCreate, body)
            origin = Origin(job_id=accept.job_id, workflow_id=accept.workflow_id)
            await accept_job(self._hands.db, caller, request, origin, self._hands.settings.job_rules())
        row = await record.start_job(self._hands.db, accept.job_id)
        if row is None:
            raise EvolveError(f"job {accept.job_id} does not exist", code="job_not_found")
        is_cancelled = row["status"] in (JobStatus.CANCELLING, JobStatus.CANCELLED)
        return JobStart(
            job_id=accept.job_id,
            n_total_trials=row["n_total_trials"],
            n_concurrent_trials=row["plan"]["n_concurrent_trials"],
            is_cancelled=is_cancelled,
            to_cancel=await self._under_way(accept.job_id) if is_cancelled else [],
            is_paused=row["paused_at"] is not None,
            is_regrade=JobPlan.model_validate(row["plan"]).is_regrade,
            search={searching.JOB_ID: accept.job_id} if self._hands.has_search_attributes else {},
        )

    async def _under_way(self, job_id: str) -> list[int]:
        """Trials that an earlier workflow of the job started, where an operator ended that one."""
        pool = await self._hands.db.pool()
        rows = await pool.fetch(
            "SELECT index FROM trials WHERE job_id = $1 AND status IN ('RUNNING', 'SCORING') ORDER BY index",
            job_id,
        )
        return [row["index"] for row in rows]

    @activity.defn(name=FIND_SILENT.name)
    async def find_silent(self, trials: JobIndexes) -> Silent:
        """Which have settled (or were deleted), and which never will by themselves."""
        pool = await self._hands.db.pool()
        rows = await pool.fetch(
            "SELECT id, index FROM trials WHERE job_id = $1 AND index = ANY($2) AND NOT (status = ANY($3))",
            trials.job_id,
            trials.indexes,
            [status.value for status in TRIAL_TERMINAL],
        )
        live: dict[int, str] = {row["index"]: row["id"] for row in rows}
        settled = [index for index in trials.indexes if index not in live]
        lost = [index for index, trial_id in live.items() if await self._is_closed(trial_id)]
        return Silent(settled=settled, lost=lost)

    async def _is_closed(self, trial_id: str) -> bool:
        """Whether the trial's workflow has ended; one that is only about to start has not."""
        client = activity.client()
        try:
            found = await client.get_workflow_handle(f"trial/{trial_id}").describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return False
            raise
        return found.status is not None and found.status != WorkflowExecutionStatus.RUNNING

    @activity.defn(name=CANCEL_JOB.name)
    async def cancel(self, job: JobRef) -> Nothing:
        """Also for a cancel that came by Temporal; one that the API accepted is in the store already."""
        async with self._hands.db.transaction() as connection:
            await record.cancel_job(connection, job.job_id)
        return Nothing()

    @activity.defn(name=CANCEL_UNSTARTED.name)
    async def cancel_unstarted(self, trials: JobIndexes) -> Nothing:
        """Settle trials that were stopped before they started."""
        async with self._hands.db.transaction() as connection:
            await connection.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", trials.job_id)
            await record.cancel_queued(connection, trials.job_id, trials.indexes)
        return Nothing()

    @activity.defn(name=FINISH_JOB.name)
    async def finish(self, job: JobRef) -> JobEnd:
        """The job's last event and its result."""
        row = await record.finish_job(self._hands.db, job.job_id)
        if row is None:
            raise EvolveError(f"job {job.job_id} was deleted", code="job_not_found")
        pool = await self._hands.db.pool()
        mean = await pool.fetchval(
            "SELECT avg(coalesce(reward, 0)) FROM trials WHERE job_id = $1 AND status = 'SCORED'", job.job_id
        )
        return JobEnd(
            job_id=job.job_id,
            status=row["status"],
            n_total_trials=row["n_total_trials"],
            by_status=row["by_status"],
            mean_reward=mean,
        )
