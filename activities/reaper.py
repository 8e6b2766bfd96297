"""The reaper's hands: find what nobody needs any more, and end it unless it is only to be told.

Each part is looked at by itself, so that one that cannot be (an engine that is away) keeps no other back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial

import structlog
from temporalio import activity
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)

from activities import reap_boxes, reap_disk, reap_store, reap_workflows
from activities.heartbeats import heartbeats
from activities.reap_workflows import Temporal
from activities.signatures import (
    FIND_HOSTS,
    REAP_HOST,
    REAP_SHARED,
    REAPER_ID,
    REAPER_WORKFLOW,
    REPORTED_MAX,
    HostQueue,
    LiveHosts,
    ReapOrder,
    ReapReport,
)
from activities.trial_context import Hands
from domain.reaping import Leftover
from store.hosts import live_hosts

log = structlog.get_logger()

Part = Callable[[], Awaitable[list[Leftover]]]
CATCH_UP = timedelta(minutes=1)


class Reaper:
    """`queue` is that of our workflows: only what runs there is ours."""

    def __init__(self, hands: Hands, queue: str) -> None:
        self._hands = hands
        self._queue = queue

    @activity.defn(name=FIND_HOSTS.name)
    async def find_hosts(self, order: ReapOrder) -> LiveHosts:
        """One that is away looks after its own when it is back."""
        rows = await live_hosts(self._hands.db)
        return LiveHosts(hosts=[HostQueue(host_id=row["id"], queue=row["queue"]) for row in rows])

    @activity.defn(name=REAP_HOST.name)
    async def reap_host(self, order: ReapOrder) -> ReapReport:
        hands, is_dry = self._hands, order.is_dry
        parts: dict[str, Part] = {}
        for name, provider in hands.providers.items():
            parts[f"boxes of {name}"] = partial(reap_boxes.reap_boxes, hands, provider, is_dry=is_dry)
            parts[f"litter of {name}"] = partial(reap_boxes.reap_litter, hands, provider, is_dry=is_dry)
            parts[f"images of {name}"] = partial(reap_disk.reap_images, hands, provider, is_dry=is_dry)
        parts["bundles"] = partial(reap_disk.reap_bundles, hands, is_dry=is_dry)
        return await _reap(parts)

    @activity.defn(name=REAP_SHARED.name)
    async def reap_shared(self, order: ReapOrder) -> ReapReport:
        hands, is_dry = self._hands, order.is_dry
        temporal = Temporal(activity.client(), self._queue)
        return await _reap(
            {
                "trials": lambda: reap_workflows.reap_trials(hands, temporal, is_dry=is_dry),
                "lost": lambda: reap_workflows.reap_lost(hands, temporal, is_dry=is_dry),
                "jobs": lambda: reap_workflows.reap_jobs(hands, temporal, is_dry=is_dry),
                "imports": lambda: reap_workflows.reap_imports(hands, temporal, is_dry=is_dry),
                "workflows": lambda: reap_workflows.reap_workflows(hands, temporal, is_dry=is_dry),
                "keys": lambda: reap_store.reap_keys(hands, is_dry=is_dry),
                "calls": lambda: reap_store.reap_calls(hands, is_dry=is_dry),
                "uploads": lambda: reap_store.reap_uploads(hands, is_dry=is_dry),
                "blobs": lambda: reap_store.reap_blobs(hands, is_dry=is_dry),
                "intents": lambda: reap_store.reap_intents(hands, is_dry=is_dry),
                "streams": lambda: reap_store.reap_streams(hands, is_dry=is_dry),
            }
        )


async def _reap(parts: Mapping[str, Part]) -> ReapReport:
    leftovers: list[Leftover] = []
    counts: Counter[str] = Counter()
    problems: list[str] = []
    async with heartbeats():
        for name, part in parts.items():
            try:
                found = await part()
            except reap_boxes.PartlyDone as partly:
                found = partly.found
                problems.append(f"{name}: {partly}"[:500])
            except Exception as error:
                log.warning("a part of the reaper failed", part=name, error=repr(error))
                problems.append(f"{name}: {type(error).__name__}: {error}"[:500])
                continue
            counts.update(each.kind.value for each in found)
            leftovers += found[:REPORTED_MAX]
    if counts:
        log.info("left over", **counts)
    return ReapReport(n_by_kind=dict(counts), leftovers=leftovers, problems=problems)


async def ensure_schedule(client: Client, queue: str, every: timedelta) -> None:
    """The one schedule of this installation, as this release wants it; whether it is paused stays."""
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(REAPER_WORKFLOW, ReapOrder(), id=REAPER_ID, task_queue=queue),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=every)]),
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP, catchup_window=CATCH_UP),
    )

    def as_wanted(found: ScheduleUpdateInput) -> ScheduleUpdate:
        schedule.state = found.description.schedule.state
        return ScheduleUpdate(schedule)

    try:
        await client.create_schedule(REAPER_ID, schedule)
    except ScheduleAlreadyRunningError:
        await client.get_schedule_handle(REAPER_ID).update(as_wanted)
