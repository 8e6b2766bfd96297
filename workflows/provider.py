"""The story of one provider's breaker: hear of failed creates, stop dispatch, probe, let it go on."""

from __future__ import annotations

from typing import Literal

from temporalio import workflow

from workflows import names, options

with workflow.unsafe.imports_passed_through():
    from activities import signatures as act
    from activities.signatures import HealthToWrite, ProviderReport, ProviderWindow
    from domain.breaker import WINDOW, Breaker, BreakerState, CreateFailure
    from workflows.inputs import ProviderInput

Order = Literal["open", "close"]


@workflow.defn(name=names.PROVIDER_WORKFLOW)
class ProviderWorkflow:
    """`provider/<name>`: runs from a first failure until all has been well for a while.

    Trials whose box could not be made signal it, and the one that probes says how that went; dispatch reads
    what it writes to the store. Operators see it by query and override it by update.
    """

    @workflow.init
    def __init__(self, start: ProviderInput) -> None:
        self._provider = start.provider
        self._breaker = start.breaker
        self._reports: list[ProviderReport] = list(start.reports)
        self._orders: list[Order] = []
        self._n_heard = 0

    @workflow.signal(name=names.SIGNAL_CREATE_ENDED)
    def create_ended(self, report: ProviderReport) -> None:
        self._reports.append(report)

    @workflow.signal(name=names.SIGNAL_ORDER_BREAKER)
    def order_breaker(self, order: Order) -> None:
        """As `set_breaker`, for an intent that is delivered also while no worker is there to answer."""
        self._orders.append(order)

    @workflow.update(name=names.UPDATE_SET_BREAKER)
    async def set_breaker(self, order: Order) -> Breaker:
        """`open`: dispatch pauses until `close`. Answers once dispatch can see it."""
        self._orders.append(order)
        await workflow.wait_condition(lambda: not self._orders)
        return self._breaker

    @set_breaker.validator
    def _check_order(self, order: Order) -> None:
        if order not in ("open", "close"):
            raise ValueError(f"{order!r} is neither open nor close")

    @workflow.query(name=names.QUERY_BREAKER)
    def breaker(self) -> Breaker:
        """As it stands."""
        return self._breaker

    @workflow.run
    async def run(self, start: ProviderInput) -> Breaker:
        while True:
            try:
                await workflow.wait_condition(self._has_news, timeout=self._time_left())
            except TimeoutError:
                await self._change(self._breaker.due(workflow.now()))
            await self._take_in_reports()
            await self._obey()
            if self._has_news():
                continue
            if self._breaker.state is BreakerState.CLOSED and not self._breaker.failures:
                await workflow.wait_condition(workflow.all_handlers_finished)
                return self._breaker
            if self._n_heard >= options.REPORTS_PER_RUN or workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                workflow.continue_as_new(self._carried())

    def _has_news(self) -> bool:
        return bool(self._reports or self._orders)

    def _time_left(self) -> float | None:
        due_at = self._breaker.due_at()
        return None if due_at is None else max(0.0, (due_at - workflow.now()).total_seconds())

    def _carried(self) -> ProviderInput:
        return ProviderInput(provider=self._provider, breaker=self._breaker, reports=self._reports)

    async def _take_in_reports(self) -> None:
        heard, self._reports = self._reports, []
        self._n_heard += len(heard)
        breaker = self._breaker
        for report in heard:
            breaker = _heard(breaker, report)
        if heard and breaker.is_suspect:
            window = ProviderWindow(provider=self._provider, since=workflow.now() - WINDOW)
            good = await options.call(act.COUNT_GOOD_CREATES, window, options.RECORD)
            breaker = breaker.judged(good.n, workflow.now())
        await self._change(breaker)

    async def _obey(self) -> None:
        orders = list(self._orders)
        for order in orders:
            at = workflow.now()
            await self._change(self._breaker.held_open(at) if order == "open" else self._breaker.closed(at))
        del self._orders[: len(orders)]

    async def _change(self, breaker: Breaker) -> None:
        """Dispatch sees a new state, and each new probe, before anything follows from it."""
        before, self._breaker = self._breaker, breaker
        if (before.state, before.since, before.is_held) != (breaker.state, breaker.since, breaker.is_held):
            workflow.set_current_details(f"{breaker.state}: {breaker.reason or 'all is well'}")
            health = HealthToWrite(provider=self._provider, breaker=breaker)
            await options.call(act.WRITE_HEALTH, health, options.RECORD)


def _heard(breaker: Breaker, report: ProviderReport) -> Breaker:
    if report.problem is None:
        return breaker.succeeded(report.at)
    failure = CreateFailure(trial_id=report.trial_id, task=report.task, at=report.at, message=report.problem)
    return breaker.failed(failure)
