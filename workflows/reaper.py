"""The story of one look around for what nobody needs any more: here, and on each host that lives."""

from __future__ import annotations

import asyncio
from collections import Counter

from temporalio import workflow
from temporalio.exceptions import ActivityError

from workflows import names, options
from workflows.failures import message_of

with workflow.unsafe.imports_passed_through():
    from activities import signatures as act
    from activities.signatures import HostQueue, ReapOrder, ReapReport


@workflow.defn(name=names.REAPER_WORKFLOW)
class ReaperWorkflow:
    """Started by a schedule, or by an operator who wants to see it or have it done now."""

    @workflow.run
    async def run(self, order: ReapOrder) -> ReapReport:
        found = await options.call(act.FIND_HOSTS, order, options.RECORD)
        shared = options.call(act.REAP_SHARED, order, options.REAP)
        reports = await asyncio.gather(shared, *(_reap_host(host, order) for host in found.hosts))
        report = _sum_of(reports)
        workflow.set_current_details(", ".join(f"{n} {kind}" for kind, n in report.n_by_kind.items()))
        return report


async def _reap_host(host: HostQueue, order: ReapOrder) -> ReapReport:
    """A host that went away since is looked at the next time."""
    try:
        return await options.call(act.REAP_HOST, order, options.REAP, queue=host.queue)
    except ActivityError as error:
        return ReapReport(problems=[f"host {host.host_id}: {message_of(error)}"])


def _sum_of(reports: list[ReapReport]) -> ReapReport:
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.n_by_kind)
    return ReapReport(
        n_by_kind=dict(sorted(counts.items())),
        leftovers=[each for report in reports for each in report.leftovers],
        problems=[each for report in reports for each in report.problems],
    )
