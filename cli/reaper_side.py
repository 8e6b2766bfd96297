"""What `evolve admin` asks of the reaper, of incidents, and of runs that nobody goes on with.

Part of the composition root: it may import the store and the workflows, lazily.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cli.errors import CliError
from cli.store_side import database_url, naming_the_database

if TYPE_CHECKING:
    from temporalio.client import Client

    from activities.signatures import ReapReport
    from store.database import Database

PATIENCE = timedelta(minutes=15)
NAMESPACE = "evolve"
POLLS_WITHIN = timedelta(seconds=90)
"""A worker without work polls once a minute."""


@dataclass(frozen=True)
class IncidentRow:
    """As it is listed; `resolved_at` None is open."""

    kind: str
    subject: str
    message: str
    n_times: int
    first_at: datetime
    last_at: datetime
    resolved_at: datetime | None


@dataclass(frozen=True)
class StrandedRun:
    """A run that waits for what does not live."""

    workflow_id: str
    why: str


async def reap(*, is_dry: bool) -> ReapReport:
    """Have the reaper look around now. Raises `CliError` when no worker lives to do it."""
    from temporalio.client import WorkflowFailureError
    from temporalio.common import WorkflowIDConflictPolicy

    from activities.signatures import ReapOrder, ReapReport
    from store.hosts import live_hosts
    from workflows import names

    async with open_database() as db:
        if not await live_hosts(db):
            raise CliError("no worker lives that could look: `evolve status`", code="no_worker")
    client = await connect()
    try:
        return await client.execute_workflow(
            names.REAPER_WORKFLOW,
            ReapOrder(is_dry=is_dry),
            result_type=ReapReport,
            id=f"reaper/{'dry-run' if is_dry else 'now'}",
            task_queue=names.QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            execution_timeout=PATIENCE,
        )
    except WorkflowFailureError as error:
        raise CliError(f"the reaper did not come to an end: {error.cause}", code="reaper_failed") from error


async def list_incidents(*, is_open_only: bool) -> list[IncidentRow]:
    """The newest first."""
    from store import incidents

    async with open_database() as db:
        rows = await incidents.list_incidents(db, is_open_only=is_open_only)
    return [IncidentRow(**{name: row[name] for name in IncidentRow.__dataclass_fields__}) for row in rows]


async def stranded_runs() -> list[StrandedRun]:
    """Trials whose host is gone, and workflows pinned to a build that no living worker is of.

    None while no worker lives at all: then everything waits. Raises `CliError` where that cannot be told.
    """
    from store.hosts import away_trials, live_hosts

    async with open_database() as db:
        if not await live_hosts(db):
            return []
        away = [
            StrandedRun(f"trial/{row['trial_id']}", f"its host {row['host_id']} is away since {row['since']}")
            for row in await away_trials(db)
        ]
    return away + await _pinned_runs(await connect())


async def _pinned_runs(client: Client) -> list[StrandedRun]:
    from workflows import names

    living = await _living_builds(client, names.QUEUE)
    query = (
        f"ExecutionStatus = 'Running' AND TaskQueue = '{names.QUEUE}'"
        " AND TemporalWorkflowVersioningBehavior = 'Pinned'"
    )
    stranded: list[StrandedRun] = []
    async for run in client.list_workflows(query):
        told = run.search_attributes.get("TemporalWorkerDeploymentVersion")  # ["evolve:<build>"]
        build = str(told[0]).partition(":")[2] if told else ""
        if build not in living:
            stranded.append(StrandedRun(run.id, f"no worker of build {build} lives"))
    return stranded


async def _living_builds(client: Client, queue: str) -> set[str]:
    """Temporal remembers a worker for minutes after its last poll."""
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

    asked = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    )
    described = await client.workflow_service.describe_task_queue(asked)
    since = datetime.now(UTC) - POLLS_WITHIN
    return {
        poller.deployment_options.build_id
        for poller in described.pollers
        if poller.last_access_time.ToDatetime(UTC) > since
    }


async def connect() -> Client:
    """Temporal as the environment names it, or that of this home's stack."""
    from temporalio.client import Client

    from cli.stack.home import Home
    from cli.stack.record import StackRecord
    from workflows import names

    address = os.environ.get("EVOLVE_TEMPORAL_ADDRESS")
    record = StackRecord.read(Home.from_environment().stack_record)
    if not address and record is None:
        raise CliError("no Temporal: `evolve up` starts one, EVOLVE_TEMPORAL_ADDRESS names another")
    address = address or (record.ports.temporal_address if record else "")
    namespace = os.environ.get("EVOLVE_TEMPORAL_NAMESPACE") or NAMESPACE
    try:
        return await Client.connect(address, namespace=namespace, data_converter=names.DATA_CONVERTER)
    except RuntimeError as error:  # of the SDK's core
        raise CliError(f"Temporal does not answer at {address}", code="temporal_unreachable") from error


@asynccontextmanager
async def open_database() -> AsyncGenerator[Database]:
    """The installation's; raises `CliError` where its schema is not ours."""
    from store import migrations
    from store.database import Database

    url = database_url()
    db = Database(url)
    try:
        with naming_the_database():
            await migrations.check(url)
            yield db
    except migrations.SchemaOutdated as error:
        raise CliError(error.message, code=error.code) from error
    finally:
        await db.close()
