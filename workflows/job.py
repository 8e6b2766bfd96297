"""The story of a job: a sliding window of trials, pauses, a cancel, an end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from uuid import NAMESPACE_URL, uuid5

from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.workflow import ParentClosePolicy

from workflows import names, options
from workflows.regrade import RegradeWorkflow
from workflows.searching import be_found_by
from workflows.trial import TrialWorkflow

with workflow.unsafe.imports_passed_through():
    from pydantic_core import to_json
    from temporalio.common import WorkflowIDReusePolicy

    from activities import signatures as act
    from activities.signatures import JobIndexes, JobRef
    from domain.jobs import trial_id_of
    from workflows.inputs import JobInput, TrialInput, Window


T = TypeVar("T")


@workflow.defn(name=names.JOB_WORKFLOW)
class JobWorkflow:
    """Starts trials up to the job's width, learns of each settle by signal, holds only indexes and counts."""

    @workflow.init
    def __init__(self, start: JobInput) -> None:
        self._window = start.window
        self._settled: list[int] = []
        self._to_stop: list[int] = list(start.window.to_stop) if start.window else []
        self._is_cancel_wanted = start.window.is_cancel_wanted if start.window else False
        self._is_paused = start.window.is_paused if start.window else False
        self._pause_order = start.window.pause_order if start.window else 0
        self._settled_in_this_run = 0

    @workflow.signal(name=names.SIGNAL_TRIAL_SETTLED)
    def trial_settled(self, index: int) -> None:
        self._settled.append(index)

    @workflow.signal(name=names.SIGNAL_CANCEL)
    def cancel(self) -> None:
        self._is_cancel_wanted = True

    @workflow.signal(name=names.SIGNAL_STOP_TRIALS)
    def stop_trials(self, indexes: list[int]) -> None:
        self._to_stop.extend(indexes)

    @workflow.signal(name=names.SIGNAL_SET_PAUSED)
    def set_paused(self, order: int, is_paused: bool) -> None:
        """What was asked last holds: words come at least once, and from several processes in any order."""
        if order > self._pause_order:
            self._pause_order, self._is_paused = order, is_paused

    @workflow.query(name=names.QUERY_PROGRESS)
    def progress(self) -> dict[str, Any]:
        """`{job_id, n_total_trials, n_settled, n_running, n_pending, is_cancelled, is_paused}`; nulls before
        accept."""
        w = self._window
        if w is None:
            return {"job_id": None, "n_total_trials": None, "n_settled": 0, "n_running": 0, "n_pending": None}
        return {
            "job_id": w.start.job_id,
            "n_total_trials": w.start.n_total_trials,
            "n_settled": w.n_settled,
            "n_running": len(w.in_flight),
            "n_pending": w.start.n_total_trials - w.n_settled - len(w.in_flight),
            "is_cancelled": w.is_cancelled,
            "is_paused": self._is_paused,
        }

    @workflow.run
    async def run(self, start: JobInput) -> act.JobEnd:
        if self._window is None:
            accepted = await self._through_cancel(self._accept(start))
            self._window = Window(
                start=accepted, is_cancelled=accepted.is_cancelled, in_flight=accepted.to_cancel
            )
            await self._through_cancel(self._cancel_trials(accepted.to_cancel))
            be_found_by(accepted.search)
            if self._pause_order == 0:
                self._is_paused = accepted.is_paused
        while not self._is_over():
            try:
                await self._react()
            except asyncio.CancelledError:
                # Temporal's own cancel (UI, CLI, client) means what our signal means.
                self._is_cancel_wanted = True
            if self._is_long():
                workflow.continue_as_new(JobInput(job_id=self._open.start.job_id, window=self._carried()))
        job = JobRef(job_id=self._open.start.job_id)
        end = await self._through_cancel(options.call(act.FINISH_JOB, job, options.RECORD))
        if self._open.start.search:
            be_found_by({names.SEARCH_OUTCOME: end.status})
        return end

    async def _through_cancel(self, step: Coroutine[Any, Any, T]) -> T:
        """A step that a cancel must not cut: Temporal's own then waits, as our signal does."""
        running = asyncio.create_task(step)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._is_cancel_wanted = True
            return await running

    @property
    def _open(self) -> Window:
        assert self._window is not None
        return self._window

    async def _accept(self, start: JobInput) -> act.JobStart:
        info = workflow.info()
        job_id = start.job_id or str(
            uuid5(NAMESPACE_URL, f"{info.workflow_id}/{info.first_execution_run_id}")
        )
        body = start.model_extra or {}
        request = act.AcceptInput(
            job_id=job_id,
            workflow_id=info.workflow_id,
            owner=start.owner,
            request_json=None if start.job_id else to_json(body).decode(),
        )
        return await options.call(act.ACCEPT_JOB, request, options.ACCEPT)

    def _is_over(self) -> bool:
        w = self._open
        return not w.in_flight and (w.is_cancelled or w.next_index >= w.start.n_total_trials)

    async def _react(self) -> None:
        """One turn: take in what was signalled, fill the window, wait for more."""
        self._drain_settled()
        if self._is_cancel_wanted and not self._open.is_cancelled:
            await self._cancel()
        if self._to_stop:
            await self._stop()
        await self._fill()
        if self._is_over() or self._settled:
            return
        was_paused = self._is_paused
        try:
            await workflow.wait_condition(
                lambda: (
                    bool(self._settled or self._to_stop)
                    or (self._is_cancel_wanted and not self._open.is_cancelled)
                    or self._is_paused != was_paused
                ),
                # A paused job may have nothing in flight that could be silent.
                timeout=options.RECONCILE_AFTER if self._open.in_flight else None,
            )
        except TimeoutError:
            await self._reconcile()

    def _drain_settled(self) -> None:
        w = self._open
        flying = set(w.in_flight)
        done = {index for index in self._settled if index in flying}
        self._settled.clear()
        self._settled_in_this_run += len(done)
        self._window = w.model_copy(
            update={
                "in_flight": [i for i in w.in_flight if i not in done],
                "n_settled": w.n_settled + len(done),
            }
        )

    async def _fill(self) -> None:
        """Start what there is room for in one turn: one after another would cost a turn of Temporal each."""
        w = self._open
        room = w.start.n_concurrent_trials - len(w.in_flight)
        if w.is_cancelled or self._is_paused or room <= 0:
            return
        indexes = range(w.next_index, min(w.next_index + room, w.start.n_total_trials))
        # In flight before they are started: a settle that arrives at once is not lost.
        update = {"next_index": indexes.stop, "in_flight": [*w.in_flight, *indexes]}
        self._window = w.model_copy(update=update)
        await asyncio.gather(*(self._start(index) for index in indexes))

    async def _start(self, index: int, *, ended_by: str | None = None) -> None:
        job_id = self._open.start.job_id
        trial = trial_id_of(job_id, index)
        start = TrialInput(
            job_id=job_id,
            trial_id=trial,
            index=index,
            job_workflow_id=workflow.info().workflow_id,
            ended_by=ended_by,
        )
        again = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
        try:
            await workflow.start_child_workflow(
                RegradeWorkflow.run if self._open.start.is_regrade else TrialWorkflow.run,
                start,
                id=names.trial_workflow_id(trial),
                parent_close_policy=ParentClosePolicy.ABANDON,
                id_reuse_policy=again if ended_by else WorkflowIDReusePolicy.REJECT_DUPLICATE,
                static_summary=f"trial {index} of job {job_id}",
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("trial %s was started already", trial)

    async def _cancel(self) -> None:
        """The store settles what is queued (a cancel by the API has done so); what runs is cancelled here."""
        job = JobRef(job_id=self._open.start.job_id)
        await self._through_cancel(options.call(act.CANCEL_JOB, job, options.RECORD))
        self._window = self._open.model_copy(update={"is_cancelled": True})
        await self._cancel_trials(self._open.in_flight)

    async def _stop(self) -> None:
        wanted, self._to_stop = sorted(set(self._to_stop)), []
        unstarted = [index for index in wanted if index >= self._open.next_index]
        if unstarted:
            indexes = JobIndexes(job_id=self._open.start.job_id, indexes=unstarted)
            await self._through_cancel(options.call(act.CANCEL_UNSTARTED, indexes, options.RECORD))
        await self._cancel_trials(sorted(set(wanted) & set(self._open.in_flight)))

    async def _cancel_trials(self, indexes: list[int]) -> None:
        await asyncio.gather(*(self._cancel_trial(index) for index in indexes))

    async def _cancel_trial(self, index: int) -> None:
        trial = trial_id_of(self._open.start.job_id, index)
        handle = workflow.get_external_workflow_handle(names.trial_workflow_id(trial))
        try:
            await handle.cancel()
        except Exception as error:  # closed already: its settle is on the way or found by the reconcile
            workflow.logger.info("trial %s could not be cancelled: %s", trial, error)

    async def _reconcile(self) -> None:
        """Ask for what is silent: a trial whose workflow an operator terminated never signals."""
        flying = JobIndexes(job_id=self._open.start.job_id, indexes=self._open.in_flight)
        silent = await self._through_cancel(options.call(act.FIND_SILENT, flying, options.RECORD))
        self._settled.extend(silent.settled)
        for index in silent.lost:
            await self._start(index, ended_by="The trial's workflow was ended from outside.")

    def _is_long(self) -> bool:
        is_due = self._settled_in_this_run >= options.TRIALS_PER_RUN
        return not self._is_over() and (is_due or workflow.info().is_continue_as_new_suggested())

    def _carried(self) -> Window:
        """All that was signalled and not yet acted on goes into the next run."""
        self._drain_settled()
        update = {
            "is_cancel_wanted": self._is_cancel_wanted,
            "is_paused": self._is_paused,
            "pause_order": self._pause_order,
            "to_stop": self._to_stop,
        }
        return self._open.model_copy(update=update)
