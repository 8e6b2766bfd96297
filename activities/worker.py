"""A worker process: this host's hands, and the workflows that the composition root gives it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from pydantic import ValidationError
from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.converter import DataConverter
from temporalio.worker import Worker, WorkerDeploymentConfig, WorkflowRunner

from activities.agent import RunAgent
from activities.archive import Archives
from activities.bundles import Bundles
from activities.close import CloseTrial
from activities.failures import FailureInterceptor
from activities.host import (
    HostProviders,
    host_follow_queue,
    host_queue,
    keep_lease,
    open_providers,
)
from activities.imports import Imports
from activities.jobs import Jobs
from activities.npm_registry import NpmRegistry
from activities.open_box import OpenBox
from activities.packages import TaskPackages
from activities.prepare import Prepare
from activities.provider_health import ProviderHealthActivities
from activities.reaper import Reaper, ensure_schedule
from activities.refining import refine_settled_spend
from activities.regrade import RegradeTrial
from activities.searching import has_search_attributes
from activities.settings import WorkerSettings
from activities.steps import PrepareStep
from activities.trial_context import Hands
from activities.verifier import RunVerifier
from domain.errors import EvolveError
from store import migrations
from store.blobs import Blobs
from store.database import Database
from store.installation import installation_id
from store.server_secret import ServerSecret

log = structlog.get_logger()

# More than the widest job (150): a follower only waits.
FOLLOWERS = 400
SHORT_SLOTS = 200
# An activity hears of its cancel with the answer to a heartbeat, so heartbeats are sent this often.
HEARTBEAT_THROTTLE = timedelta(seconds=1)


@dataclass(frozen=True)
class WorkflowSide:
    """What the composition root knows and activities must not import."""

    workflows: Sequence[type]
    queue: str
    data_converter: DataConverter
    runner: WorkflowRunner


async def open_hands(settings: WorkerSettings, db: Database) -> tuple[Hands, HostProviders]:
    """This host's providers and caches over an open store."""
    installation = await installation_id(db)
    host = await open_providers(settings, installation)
    blobs = Blobs(settings.blob_url)
    hands = Hands(
        settings=settings,
        db=db,
        blobs=blobs,
        installation_id=installation,
        providers=host.providers,
        default_provider=host.default,
        capabilities=host.capabilities,
        packages=TaskPackages(settings.state_dir / "tasks", blobs),
        bundles=Bundles(settings.bundles_dir, NpmRegistry(settings.npm_registry or None)),
        secret=ServerSecret.of(settings),
    )
    return hands, host


async def run_worker(settings: WorkerSettings, side: WorkflowSide, on_ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT; running activities are then handed over, their boxes go on.

    `on_ready` is called when the queues are polled.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await migrations.check(settings.database_url.get_secret_value())
    db = Database(settings.database_url.get_secret_value())
    hands, host = await open_hands(settings, db)
    client = await Client.connect(
        settings.temporal_address,
        namespace=settings.temporal_namespace,
        data_converter=side.data_converter,
    )
    hands.has_search_attributes = await has_search_attributes(client)
    await ensure_schedule(client, side.queue, timedelta(seconds=settings.reap_every_sec))
    lease = asyncio.create_task(keep_lease(db, settings, host))
    refining = asyncio.create_task(refine_settled_spend(db))
    try:
        async with AsyncExitStack() as stack:
            for worker in make_workers(client, settings, hands, side):
                await stack.enter_async_context(worker)
            log.info("worker ready", default_provider=host.default, reason=host.default_reason)
            on_ready()
            await stop.wait()
            log.info("worker stopping: its activities are handed over")
    finally:
        lease.cancel()
        refining.cancel()
        for provider in host.providers.values():
            await provider.close()
        await db.close()


DEPLOYMENT = "evolve"
"""The name of our workers' deployment; a version of it is a build."""


def deployment_of(settings: WorkerSettings) -> WorkerDeploymentConfig | None:
    """Pinned runs, where the operator names builds: old workers then stay until they are drained."""
    if not settings.worker_build_id:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(DEPLOYMENT, settings.worker_build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )


def make_workers(client: Client, settings: WorkerSettings, hands: Hands, side: WorkflowSide) -> list[Worker]:
    """The three queues that this process serves."""
    close, reaper = CloseTrial(hands), Reaper(hands, side.queue)
    options: dict[str, Any] = {
        "interceptors": [FailureInterceptor()],
        "max_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
        "default_heartbeat_throttle_interval": HEARTBEAT_THROTTLE,
        "graceful_shutdown_timeout": timedelta(0),
    }
    return [
        Worker(
            client,
            task_queue=side.queue,
            workflows=side.workflows,
            workflow_runner=side.runner,
            # Any other error is a bug of the code: its task is tried until a worker with better code comes.
            workflow_failure_exception_types=[EvolveError, ValidationError],
            activities=_shared(hands, close, reaper),
            deployment_config=deployment_of(settings),
            max_concurrent_activities=SHORT_SLOTS,
            **options,
        ),
        Worker(
            client,
            task_queue=host_queue(settings.host_id),
            activities=[close.close_trial, reaper.reap_host],
            max_concurrent_activities=SHORT_SLOTS,
            **options,
        ),
        Worker(
            client,
            task_queue=host_follow_queue(settings.host_id),
            activities=_following(hands),
            max_concurrent_activities=FOLLOWERS,
            **options,
        ),
    ]


def _shared(hands: Hands, close: CloseTrial, reaper: Reaper) -> list[Any]:
    """What any worker can do."""
    jobs, imports, prepare = Jobs(hands), Imports(hands), Prepare(hands)
    health = ProviderHealthActivities(hands)
    return [
        jobs.accept,
        jobs.find_silent,
        jobs.cancel,
        jobs.cancel_unstarted,
        jobs.finish,
        imports.unpack,
        imports.find_builder,
        imports.build,
        imports.fail,
        imports.finish,
        prepare.prepare_trial,
        prepare.find_place,
        prepare.give_back_room,
        health.report_create,
        health.release,
        health.count_good,
        health.write,
        close.close_trial,
        close.settle_trial,
        Archives(hands).build,
        reaper.find_hosts,
        reaper.reap_shared,
    ]


def _following(hands: Hands) -> list[Any]:
    """The long work of boxes on this host, and of the images that they are made of."""
    return [
        OpenBox(hands).open_box,
        PrepareStep(hands).prepare_step,
        RunAgent(hands).run_agent,
        RunVerifier(hands).run_verifier,
        RegradeTrial(hands).regrade_trial,
        Imports(hands).build,
    ]
