"""The story of one trial: attempt after attempt, each prepare → open the box → steps → close.

A task without steps is one step: its agent, its verifier. A step of a multi-step task is prepared first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import count
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from workflows import names, options
from workflows.failures import (
    failure_of,
    is_capacity_wait,
    is_create_failure,
    is_failure_in_box,
    message_of,
)
from workflows.searching import be_found_by

with workflow.unsafe.imports_passed_through():
    from activities import signatures as act
    from activities.signatures import AttemptRef, BoxedAttempt, CloseInput, Failure, PlacedAttempt, Placement
    from domain.causes import is_verified
    from domain.errors import CapacityWait, SandboxDeath
    from domain.vocabulary import AttemptPhase
    from workflows.inputs import Progress, TrialInput

T = TypeVar("T")
In = TypeVar("In", bound=BaseModel)
Boxed = TypeVar("Boxed", bound=BoxedAttempt)
Out = TypeVar("Out", bound=BaseModel)

# Runs that began before this told a breaker of the agent's boxes alone, and nothing of a probe that failed.
EVERY_CREATE_IS_TOLD = "every-create-is-told"

_PHASES = {
    act.OPEN_BOX.name: AttemptPhase.BOOT,
    act.PREPARE_STEP.name: AttemptPhase.INSTALL,
    act.RUN_AGENT.name: AttemptPhase.AGENT,
    act.RUN_VERIFIER.name: AttemptPhase.VERIFY,
    act.REGRADE_TRIAL.name: AttemptPhase.VERIFY,
    act.CLOSE_TRIAL.name: AttemptPhase.PERSIST,
}


class HostLost(ApplicationError):
    """The attempt's host is dead: its box counts as dead too, and a further attempt may run elsewhere."""

    def __init__(self, lost: act.LostHost, phase: AttemptPhase) -> None:
        facts = {"phase": phase.value, "signature": SandboxDeath.signature, "code": SandboxDeath.code}
        super().__init__(lost.why, facts, type=SandboxDeath.__name__, non_retryable=True)


@workflow.defn(name=names.TRIAL_WORKFLOW)
class TrialWorkflow:
    """Owns the attempt numbers of one trial, and is the one owner of its retries and waits.

    An attempt number is closed (its box ended, its keys revoked) and settled before the next begins, so no
    two are ever alive. Whether there is a next one, the settle itself answers: it is decided by the pure
    policy and written in the settle's transaction, so a process that dies at any moment leaves either all
    of it or nothing, and a repeat of the close gets the same answer. The job hears only of the last.

    A provider without capacity is waited for here too, the room given back meanwhile: each wait begins a
    new `turn` of the same attempt number, which outranks whatever of the turn before may still write.
    """

    @workflow.init
    def __init__(self, start: TrialInput) -> None:
        self._start = start
        self._attempt = AttemptRef(
            job_id=start.job_id,
            trial_id=start.trial_id,
            attempt_number=start.attempt_number,
            turn=start.turn,
        )
        self._signatures = list(start.signatures)
        self._waited_sec = start.waited_sec
        self._n_waits = start.n_waits
        self._progress = Progress()
        self._lost: act.LostHost | None = None

    @workflow.signal(name=names.SIGNAL_HOST_LOST)
    def host_lost(self, lost: act.LostHost) -> None:
        """Said again and again until the attempt is settled, so a word about an earlier place is ignored."""
        placement = self._progress.placement
        is_here = placement is not None and placement.host_id == lost.host_id
        if is_here and lost.attempt_number == self._attempt.attempt_number:
            self._lost = lost

    @workflow.run
    async def run(self, start: TrialInput) -> act.Settled:
        back_off_sec = 0.0
        while True:
            failure = await self._attempt_until_closed(back_off_sec)
            # Whatever comes now, the box is ended, the attempt settles, and at last the job hears of it.
            settled = await _through_cancel(self._close(failure))
            if settled.retry_after_sec is None:
                self._tell_outcome(settled)
                await _through_cancel(self._tell_job())
                return settled
            back_off_sec = settled.retry_after_sec
            self._begin_next(failure)

    def _tell_outcome(self, settled: act.Settled) -> None:
        placement = self._progress.placement
        if placement is not None and placement.search:
            be_found_by({names.SEARCH_OUTCOME: settled.status})

    def _begin_next(self, failure: Failure | None) -> None:
        self._signatures.append(failure.signature if failure else None)
        number = self._attempt.attempt_number + 1
        self._attempt = self._attempt.model_copy(update={"attempt_number": number, "turn": 0})
        self._progress, self._lost = Progress(), None

    async def _attempt_until_closed(self, back_off_sec: float) -> Failure | None:
        """One attempt number up to its close; returns why it has no verdict, if so."""
        try:
            if self._start.ended_by is not None:
                return await self._take_over(self._start.ended_by)
            await self._back_off(back_off_sec)
            await self._run_attempt()
        except BaseException as error:
            failure = failure_of(error)
            if failure is None:
                raise
            await _through_cancel(self._release_probe())
            return failure
        return None

    async def _take_over(self, ended_by: str) -> Failure:
        """What a workflow that was ended from outside had in hand is closed, and nothing follows."""
        left = await options.call_here(act.FIND_PLACE, self._attempt, options.RECORD)
        update = {"attempt_number": left.attempt_number, "turn": left.turn}
        self._attempt = self._attempt.model_copy(update=update)
        self._progress.placement = left
        return Failure(kind="infrastructure", message=ended_by, is_final=True)

    async def _back_off(self, delay_sec: float) -> None:
        _heed_cancel()
        if delay_sec:
            workflow.set_current_details(f"attempt {self._attempt.attempt_number} begins after a wait")
            await workflow.sleep(delay_sec)

    async def _run_attempt(self) -> None:
        placed = await self._open_box()
        if placed is None:
            return
        box = self._progress.box
        assert box is not None
        for part in box.parts:
            _heed_cancel()
            update = {"step": part.position, "harness": box.harness, "box_id": box.box_id}
            if not await self._run_part(placed.model_dump() | update, part):
                return

    async def _run_part(self, attempt: dict[str, Any], part: act.StepPlan) -> bool:
        """One step, or all of a task that has none; whether the next one follows."""
        progress = self._progress
        progress.step, progress.agent, progress.verifier = part.position, None, None
        boxed = BoxedAttempt(**attempt, timeout_sec=part.agent_timeout_sec)
        if part.position is not None and not await self._prepare_step(boxed):
            return False
        agent = progress.agent = await self._follow(act.RUN_AGENT, boxed)
        _heed_cancel()
        if not is_verified(agent.cause):
            return False
        verify = act.VerifierInput(**attempt, timeout_sec=part.verifier_timeout_sec, agent=agent)
        verifier = progress.verifier = await self._verify(verify)
        return verifier.lets_go_on

    async def _prepare_step(self, boxed: BoxedAttempt) -> bool:
        ready = await self._follow(act.PREPARE_STEP, boxed)
        self._progress.unready = ready.problem
        _heed_cancel()
        return ready.problem is None

    async def _follow(self, signature: act.Signature[Boxed, Out], argument: Boxed) -> Out:
        """What lasts as long as a process in the box does."""
        return await self._on_host(signature, argument, options.following(argument.timeout_sec))

    async def _on_host(self, signature: act.Signature[In, Out], argument: In, limits: options.Limits) -> Out:
        """The long work of the attempt's host. Raises `HostLost` when that is given up meanwhile."""
        placement = self._progress.placement
        assert placement is not None
        try:
            return await self._unless_lost(signature, argument, limits, placement.follow_queue)
        except HostLost:
            _heed_cancel()
            raise

    async def _unless_lost(
        self, signature: act.Signature[In, Out], argument: In, limits: options.Limits, queue: str | None
    ) -> Out:
        """Work of a host that is lost is cancelled and not waited for: nobody may be there to answer."""
        running = asyncio.create_task(options.call(signature, argument, limits, queue=queue))
        try:
            await workflow.wait_condition(lambda: running.done() or self._lost is not None)
        except asyncio.CancelledError:
            running.cancel()
            await workflow.wait_condition(lambda: running.done() or self._lost is not None)
        if not running.done():
            running.add_done_callback(_hear)
            running.cancel()
            assert self._lost is not None
            raise HostLost(self._lost, _PHASES[signature.name])
        return running.result()

    async def _open_box(self) -> PlacedAttempt | None:
        """Place the attempt and open its box, as often as the provider has no capacity; None: it is over."""
        while True:
            placement = self._progress.placement = await self._place()
            if placement.is_settled:
                return None
            _heed_cancel()
            placed = PlacedAttempt(
                **self._attempt.model_dump(), provider=placement.provider, host_id=placement.host_id
            )
            self._progress.box = await self._unless_full(act.OPEN_BOX, placed, options.OPEN_BOX)
            if self._progress.box is not None:
                return placed

    async def _unless_full(
        self, signature: act.Signature[In, Out], argument: In, limits: options.Limits
    ) -> Out | None:
        """What makes a box; its provider's breaker hears of it. None: the provider had no capacity, and a
        wait for it is over: to be asked again, in the turn that is then."""
        try:
            made = await self._on_host(signature, argument, limits)
        except ActivityError as error:
            await self._tell_failure(signature, error)
            await self._wait_for_capacity(error)
            return None
        placement = self._progress.placement
        if placement is not None and placement.is_probe:
            await self._report(placement, None)
        return made

    async def _tell_failure(self, signature: act.Signature[In, Out], error: ActivityError) -> None:
        """A box that could not be made is its provider's breaker's to hear of; of a probe also one that was
        made, whatever failed in it afterwards."""
        placement = self._progress.placement
        assert placement is not None
        if is_create_failure(error):
            if signature is not act.RUN_VERIFIER or workflow.patched(EVERY_CREATE_IS_TOLD):
                await self._report(placement, message_of(error))
        elif placement.is_probe and is_failure_in_box(error) and workflow.patched(EVERY_CREATE_IS_TOLD):
            await self._report(placement, None)
        elif is_capacity_wait(error):
            await self._release_probe()

    async def _report(self, placement: Placement, problem: str | None) -> None:
        report = act.CreateReport(**self._attempt.model_dump(), provider=placement.provider, problem=problem)
        await options.call(act.REPORT_CREATE, report, options.RECORD)
        self._progress.placement = placement.model_copy(update={"is_probe": False})

    async def _release_probe(self) -> None:
        """A probe that says nothing of the provider, because it was stopped, say, is another trial's turn."""
        placement = self._progress.placement
        if placement is None or not placement.is_probe or not workflow.patched(EVERY_CREATE_IS_TOLD):
            return
        probe = act.PlacedAttempt(
            **self._attempt.model_dump(), provider=placement.provider, host_id=placement.host_id
        )
        await options.call_here(act.RELEASE_PROBE, probe, options.RECORD)
        self._progress.placement = placement.model_copy(update={"is_probe": False})

    async def _place(self) -> Placement:
        """Where there is room. That of our own hosts is waited for without limit: trials end, hosts come."""
        for n_asked in count():
            placement = await options.call_here(act.PREPARE_TRIAL, self._attempt, options.RECORD)
            if placement.waiting_for is None:
                workflow.set_current_details("")
                self._lost = None
                if self._attempt.attempt_number == 1:
                    be_found_by(placement.search)
                return placement
            workflow.set_current_details(f"waiting for room: {placement.waiting_for}")
            await workflow.sleep(options.WAIT_FOR_ROOM.nth(n_asked))
            is_long = n_asked + 1 >= options.WAITS_PER_RUN
            if is_long or workflow.info().is_continue_as_new_suggested():
                self._continue_as_new()
        raise AssertionError("counting never ends")

    async def _verify(self, verify: act.VerifierInput) -> act.VerifierEnd:
        """The agent is over; a verifier that has no box of its own yet is waited for, and the agent kept."""
        while True:
            limits = options.following(verify.timeout_sec)
            end = await self._unless_full(act.RUN_VERIFIER, verify, limits)
            if end is not None:
                return end
            verify = verify.model_copy(update={"turn": self._attempt.turn})

    async def _wait_for_capacity(self, error: ActivityError) -> None:
        """Give the room back and wait, within the trial's budget; raises what is no lack of capacity."""
        if not is_capacity_wait(error):
            raise error
        wait = options.WAIT_FOR_CAPACITY.nth(self._n_waits)
        self._waited_sec += wait.total_seconds()
        if self._waited_sec > options.CAPACITY_BUDGET.total_seconds():
            _give_up_waiting(error)
        self._n_waits += 1
        self._attempt = self._attempt.model_copy(update={"turn": self._attempt.turn + 1})
        reason = message_of(error)
        waited = act.CapacityWaited(**self._attempt.model_dump(), waiting_for=reason)
        await options.call_here(act.GIVE_BACK_ROOM, waited, options.RECORD)
        workflow.set_current_details(f"waiting for the provider: {reason}")
        await workflow.sleep(wait)

    def _continue_as_new(self) -> NoReturn:
        """A wait may be long: the history it has written is left behind. Only before the box is opened."""
        carried = {
            "attempt_number": self._attempt.attempt_number,
            "turn": self._attempt.turn,
            "signatures": self._signatures,
            "waited_sec": self._waited_sec,
            "n_waits": self._n_waits,
        }
        workflow.continue_as_new(self._start.model_copy(update=carried))

    async def _close(self, failure: Failure | None) -> act.Settled:
        placement, box = self._progress.placement, self._progress.box
        close = CloseInput(
            **self._attempt.model_dump(exclude={"step"}),
            provider=placement.provider if placement else "",
            host_id=placement.host_id if placement else "",
            step=self._progress.step,
            unready=self._progress.unready,
            box_id=box.box_id if box else None,
            harness=box.harness if box else act.HarnessPlace(),
            agent=self._progress.agent,
            verifier=self._progress.verifier,
            failure=failure,
            signatures=self._signatures,
        )
        queue = placement.queue if placement and placement.queue else None
        try:
            if self._lost is None:
                return await self._unless_lost(act.CLOSE_TRIAL, close, options.CLOSE, queue)
        except HostLost:
            workflow.logger.info("the host of trial %s was lost while it closed", close.trial_id)
        except ActivityError as error:
            return await options.call(act.SETTLE_TRIAL, _last_resort(close, error), options.RECORD)
        assert self._lost is not None
        # What the attempt came to is in the store: only what was in its box is lost.
        left = close.model_copy(update={"lost_host": self._lost.why})
        return await options.call(act.SETTLE_TRIAL, left, options.RECORD)

    async def _tell_job(self) -> None:
        job = workflow.get_external_workflow_handle(self._start.job_workflow_id)
        try:
            await job.signal(names.SIGNAL_TRIAL_SETTLED, self._start.index)
        except ApplicationError as error:
            # The job is closed already: an operator's doing, and no business of the trial.
            workflow.logger.info("job was not told: %s", error)


async def _through_cancel(step: Coroutine[Any, Any, T]) -> T:
    """A step that a cancel must not cut; what comes after it hears of the cancel by `_heed_cancel`."""
    running = asyncio.create_task(step)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        return await running


def _hear(abandoned: asyncio.Task[Any]) -> None:
    """How work that nobody waits for ended is no error of the workflow's."""
    if not abandoned.cancelled():
        abandoned.exception()


def _heed_cancel() -> None:
    """An activity that ended by itself swallows the cancel that reached it meanwhile."""
    if workflow.cancellation_reason() is not None:
        raise asyncio.CancelledError


def _last_resort(close: CloseInput, error: ActivityError) -> CloseInput:
    """A trial always settles, and on what it came to: a close that failed changes neither score nor failure.

    What it would have kept is told, and the box is the reaper's: no attempt may follow beside it.
    """
    return close.model_copy(update={"unclosed": message_of(error)})


def _give_up_waiting(error: ActivityError) -> NoReturn:
    minutes = options.CAPACITY_BUDGET.total_seconds() / 60
    raise ApplicationError(
        f"the provider had no capacity in {minutes:g} minutes of waiting: {message_of(error)}",
        {"phase": "boot", "code": CapacityWait.code},
        type=CapacityWait.__name__,
        non_retryable=True,
    ) from error
