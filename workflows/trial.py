"""The story of one trial: prepare → open the box → agent → verifier → close and settle."""

from __future__ import annotations

import asyncio
from typing import cast

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, RetryState, is_cancelled_exception

from workflows import names, options

with workflow.unsafe.imports_passed_through():
    from activities import signatures as act
    from activities.signatures import AttemptRef, BoxedAttempt, CloseInput, Failure, Placement
    from domain.causes import BUDGET_REFUSED, is_verified
    from workflows.inputs import Progress, TrialInput


@workflow.defn(name=names.TRIAL_WORKFLOW)
class TrialWorkflow:
    """Owns the attempt numbers of one trial; settles each exactly once."""

    @workflow.init
    def __init__(self, start: TrialInput) -> None:
        self._attempt = AttemptRef(job_id=start.job_id, trial_id=start.trial_id)
        self._progress = Progress()

    @workflow.run
    async def run(self, start: TrialInput) -> act.Settled:
        failure: Failure | None = None
        try:
            if start.ended_by is None:
                await self._run_attempt()
            else:
                place = await options.call_here(act.FIND_PLACE, self._attempt, options.RECORD)
                self._progress.placement = place
                failure = Failure(kind="infrastructure", message=start.ended_by)
        except BaseException as error:
            failure = _failure_of(error)
            if failure is None:
                raise
        # Whatever comes now, the box is ended, the trial settles and the job hears of it.
        ending = asyncio.create_task(self._end(start, failure))
        try:
            return await asyncio.shield(ending)
        except asyncio.CancelledError:
            return await ending

    async def _end(self, start: TrialInput, failure: Failure | None) -> act.Settled:
        settled = await self._close(failure)
        await self._tell_job(start)
        return settled

    async def _run_attempt(self) -> None:
        placement = await self._place()
        if placement.is_settled:
            return
        _heed_cancel()
        placed = act.PlacedAttempt(
            **self._attempt.model_dump(), provider=placement.provider, host_id=placement.host_id
        )
        box = self._progress.box = await options.call(
            act.OPEN_BOX, placed, options.OPEN_BOX, queue=placement.follow_queue
        )
        _heed_cancel()
        boxed = BoxedAttempt(
            **placed.model_dump(),
            box_id=box.box_id,
            timeout_sec=box.agent_timeout_sec,
            harness=box.harness,
        )
        agent = self._progress.agent = await options.call(
            act.RUN_AGENT, boxed, options.FOLLOW, queue=placement.follow_queue
        )
        _heed_cancel()
        if not is_verified(agent.cause):
            return
        verify = act.VerifierInput(
            **placed.model_dump(),
            box_id=box.box_id,
            timeout_sec=box.verifier_timeout_sec,
            harness=box.harness,
            agent=agent,
        )
        self._progress.verifier = await options.call(
            act.RUN_VERIFIER, verify, options.FOLLOW, queue=placement.follow_queue
        )

    async def _place(self) -> Placement:
        while True:
            placement = await options.call_here(act.PREPARE_TRIAL, self._attempt, options.RECORD)
            if placement.waiting_for is None:
                self._progress.placement = placement
                return placement
            workflow.set_current_details(f"waiting for room: {placement.waiting_for}")
            jitter = 0.5 + workflow.random().random()
            await workflow.sleep(options.WAIT_FOR_ROOM * jitter)

    async def _close(self, failure: Failure | None) -> act.Settled:
        placement, box = self._progress.placement, self._progress.box
        close = CloseInput(
            **self._attempt.model_dump(),
            provider=placement.provider if placement else "",
            host_id=placement.host_id if placement else "",
            box_id=box.box_id if box else None,
            harness=box.harness if box else act.HarnessPlace(),
            agent=self._progress.agent,
            verifier=self._progress.verifier,
            failure=failure,
        )
        queue = placement.queue if placement and placement.queue else None
        try:
            return await options.call(act.CLOSE_TRIAL, close, options.CLOSE, queue=queue)
        except ActivityError as error:
            # A trial always settles. What closing could not do is told, and the box is the reaper's.
            is_stopped = failure is not None and failure.kind == "cancelled"
            last = close.model_copy(update={"failure": failure if is_stopped else _failure_of(error)})
            return await options.call(act.SETTLE_TRIAL, last, options.RECORD)

    async def _tell_job(self, start: TrialInput) -> None:
        job = workflow.get_external_workflow_handle(start.job_workflow_id)
        try:
            await job.signal(names.SIGNAL_TRIAL_SETTLED, start.index)
        except ApplicationError as error:
            # The job is closed already: an operator's doing, and no business of the trial.
            workflow.logger.info("job was not told: %s", error)


def _heed_cancel() -> None:
    """An activity that ended by itself swallows the cancel that reached it meanwhile."""
    if workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError


def _failure_of(error: BaseException) -> Failure | None:
    """What ends the attempt without a verdict; None for what must fail the workflow itself."""
    # Once it is cancelled, an activity whose worker died is not tried again.
    is_cut = isinstance(error, ActivityError) and error.retry_state is RetryState.CANCEL_REQUESTED
    if is_cancelled_exception(error) or is_cut:
        return Failure(kind="cancelled", message="The trial was stopped.")
    # A local activity's failure comes as it is, a normal one's wrapped.
    cause = error.cause if isinstance(error, ActivityError) else error
    if not isinstance(error, ActivityError | ApplicationError):
        return None
    message = cause.message if isinstance(cause, ApplicationError) else str(cause)
    facts = _failure_facts(cause)
    code = facts.get("code")
    return Failure(
        kind="budget" if code == BUDGET_REFUSED else "infrastructure",
        message=message,
        phase=facts.get("phase"),
        signature=facts.get("signature"),
        code=code,
    )


def _failure_facts(cause: BaseException | None) -> dict[str, str | None]:
    """`{phase, signature, code}` as `activities.failures` put them; empty for what is not ours."""
    details = cause.details if isinstance(cause, ApplicationError) else ()
    return cast("dict[str, str | None]", details[0]) if details and isinstance(details[0], dict) else {}
