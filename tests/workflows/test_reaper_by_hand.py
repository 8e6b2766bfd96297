"""An operator's look at what the reaper would do, at incidents, and at runs that nobody goes on with."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr
from temporalio import workflow
from temporalio.api.workflowservice.v1 import SetWorkerDeploymentCurrentVersionRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.reaper import ensure_schedule
from activities.settings import WorkerSettings
from activities.signatures import REAPER_ID
from activities.worker import DEPLOYMENT, deployment_of
from cli import reaper_side
from cli.errors import CliError
from cli.stack.doctor import examine
from store.database import Database
from store.incidents import IncidentKind, note_incident, resolve_incident
from tests.api.conditions import until
from tests.inprocess import Platform
from tests.workflows.test_reaper import HOUR, boxes, held_job, make_box, only_trial
from workflows import names


@pytest.fixture
def pointed(db: Database, temporal: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The command line looks at this test's database and Temporal."""
    monkeypatch.setenv("EVOLVE_DATABASE_URL", db.url)
    monkeypatch.setenv("EVOLVE_TEMPORAL_ADDRESS", temporal)
    monkeypatch.setenv("EVOLVE_HOME", str(tmp_path / "home"))


@pytest.mark.usefixtures("pointed")
class TestByHand:
    async def test_a_dry_run_shows_what_a_run_does(
        self, platform: Platform, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(names, "QUEUE", platform.queue)
        await until(platform.db, "SELECT EXISTS (SELECT FROM hosts)")
        left = await make_box(platform, age_sec=HOUR)
        told = await reaper_side.reap(is_dry=True)
        assert [each.subject for each in told.leftovers] == [left]
        assert boxes(platform) == {left}
        done = await reaper_side.reap(is_dry=False)
        assert done.leftovers == told.leftovers
        assert boxes(platform) == set()

    async def test_without_a_worker_nobody_looks(self, db: Database) -> None:
        with pytest.raises(CliError, match="no worker lives"):
            await reaper_side.reap(is_dry=True)
        assert await reaper_side.stranded_runs() == []

    async def test_incidents_are_listed_until_they_are_over(self, db: Database) -> None:
        await note_incident(db, IncidentKind.DELETE_REFUSED, "box", "forbidden")
        [listed] = await reaper_side.list_incidents(is_open_only=True)
        assert (listed.kind, listed.subject, listed.n_times) == ("delete_refused", "box", 1)
        await resolve_incident(db, "box", IncidentKind.DELETE_REFUSED)
        assert await reaper_side.list_incidents(is_open_only=True) == []
        assert len(await reaper_side.list_incidents(is_open_only=False)) == 1

    async def test_a_trial_whose_host_is_away_is_named(self, platform: Platform) -> None:
        await held_job(platform)
        assert await reaper_side.stranded_runs() == []
        await platform.rows(
            "INSERT INTO hosts SELECT 'gone', providers, default_provider, default_reason, 'q', 'f', cpus,"
            " memory_mb, code_version, now() - interval '1 hour' FROM hosts"
        )
        await platform.rows("UPDATE box_leases SET host_id = 'gone'")
        [run] = await reaper_side.stranded_runs()
        assert run.workflow_id == f"trial/{(await only_trial(platform))['id']}"
        assert "gone" in run.why
        warned = [finding.what for finding in await examine() if finding.check == "stranded run"]
        assert warned == [f"{run.workflow_id}: {run.why}"]

    async def test_a_run_that_is_pinned_to_a_build_without_workers_is_named(
        self, platform: Platform, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = f"pinned-{uuid4().hex[:6]}"
        monkeypatch.setattr(names, "QUEUE", queue)
        await until(platform.db, "SELECT EXISTS (SELECT FROM hosts)")
        async with Worker(
            platform.client,
            task_queue=queue,
            workflows=[Waiting],
            workflow_runner=UnsandboxedWorkflowRunner(),
            deployment_config=deployment_of(settings_of("r1", platform.db.url)),
        ):
            await make_current(platform.client, "r1")
            handle = await platform.client.start_workflow(Waiting.run, id=queue, task_queue=queue)
            await handle.query(Waiting.is_there)
            assert await reaper_side.stranded_runs() == []
        monkeypatch.setattr(reaper_side, "POLLS_WITHIN", timedelta(0))
        [run] = await reaper_side.stranded_runs()
        assert (run.workflow_id, run.why) == (queue, "no worker of build r1 lives")
        await handle.terminate()


async def test_the_schedule_is_made_once_and_an_operators_pause_of_it_stays(platform: Platform) -> None:
    await ensure_schedule(platform.client, platform.queue, timedelta(minutes=5))
    handle = platform.client.get_schedule_handle(REAPER_ID)
    try:
        await handle.pause()
        await ensure_schedule(platform.client, platform.queue, timedelta(minutes=7))
        schedule = (await handle.describe()).schedule
        assert [each.every for each in schedule.spec.intervals] == [timedelta(minutes=7)]
        assert schedule.state.paused
        await handle.trigger()
        await until_one_ran(platform)
    finally:
        await handle.delete()


async def until_one_ran(platform: Platform) -> None:
    query = f"TaskQueue = '{platform.queue}' AND WorkflowType = 'ReaperWorkflow'"
    query += " AND ExecutionStatus = 'Completed'"
    async with asyncio.timeout(60):
        while not [run async for run in platform.client.list_workflows(query)]:  # noqa: ASYNC110 - Temporal's
            await asyncio.sleep(0.1)


@workflow.defn
class Waiting:
    """Runs until it is ended."""

    @workflow.query
    def is_there(self) -> bool:
        return True

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)


def settings_of(build_id: str, url: str) -> WorkerSettings:
    return WorkerSettings(database_url=SecretStr(url), worker_build_id=build_id)


async def make_current(client: Client, build_id: str) -> None:
    """As an operator does with Temporal's own command line, once the build's worker has polled."""
    request = SetWorkerDeploymentCurrentVersionRequest(
        namespace=client.namespace, deployment_name=DEPLOYMENT, build_id=build_id
    )
    for _ in range(100):
        try:
            await client.workflow_service.set_worker_deployment_current_version(request)
        except RPCError:
            continue
        return
    raise AssertionError(f"the build {build_id} never came to be known")
