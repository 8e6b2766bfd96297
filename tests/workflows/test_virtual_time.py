"""Waits of minutes and hours, as they are set in production, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker

from activities import signatures as act
from activities.signatures import GoodCreates, HealthToWrite, Nothing, ProviderReport, ProviderWindow
from cli.workflow_side import sandboxed
from domain.breaker import Breaker, BreakerState
from store.database import Database, now
from tests.factories import step_files, task_files
from tests.inprocess import Platform, inprocess_platform
from tests.virtual_time import SkippingServer, running_skipping_server
from tests.waiting import until
from workflows import names, options
from workflows.options import Pace
from workflows.provider import ProviderWorkflow

TEN_MINUTES = {"min_wait_sec": 600, "max_wait_sec": 600}


@pytest.fixture(scope="module")
def server() -> Iterator[SkippingServer]:
    with running_skipping_server() as running:
        yield running


@pytest_asyncio.fixture
async def platform(db: Database, server: SkippingServer, tmp_path: Path) -> AsyncIterator[Platform]:
    async with inprocess_platform(db, server.address, tmp_path) as running:
        await running.publish("demo", task_files("alpha"))
        yield running


async def run(platform: Platform, server: SkippingServer, **changes: Any) -> dict[str, Any]:
    """The job's one trial, once the job has ended."""
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], **changes}
    workflow_id = f"job-{platform.queue}"
    await server.start(names.JOB_WORKFLOW, body, workflow_id=workflow_id, queue=platform.queue)
    await asyncio.wait_for(platform.client.get_workflow_handle(workflow_id).result(), 120)
    [trial] = await platform.rows("SELECT * FROM trials")
    return trial


async def virtual_time_of(platform: Platform, trial: dict[str, Any]) -> timedelta:
    """How long the trial's workflow took by its own clock."""
    described = await platform.client.get_workflow_handle(f"trial/{trial['id']}").describe()
    assert described.close_time is not None
    return described.close_time - described.start_time


async def test_retries_back_off_as_the_policy_says(platform: Platform, server: SkippingServer) -> None:
    platform.provider.faults.plan("agent", "death", "disconnect")
    retry = {"min_wait_sec": 600, "wait_multiplier": 4, "max_wait_sec": 1800}
    trial = await run(platform, server, retry=retry)
    assert (trial["status"], trial["n_retries"]) == ("SCORED", 2)
    rows = await platform.rows("SELECT payload FROM job_events WHERE type = 'trial.retrying' ORDER BY seq")
    delays: list[Any] = [row["payload"] for row in rows]
    assert [each["delay_sec"] for each in delays] == [600, 1800]
    assert await virtual_time_of(platform, trial) > timedelta(minutes=40)


async def test_the_circuit_is_broken_before_a_second_wait(platform: Platform, server: SkippingServer) -> None:
    platform.provider.faults.plan("agent", "death", "death")
    retry = {"max_retries": 5, "min_wait_sec": 600, "wait_multiplier": 4, "max_wait_sec": 3600}
    trial = await run(platform, server, retry=retry)
    assert (trial["status"], trial["attempt_number"]) == ("INFRASTRUCTURE_ERROR", 2)
    assert await platform.rows("SELECT FROM job_events WHERE type = 'trial.retry_circuit_broken'")
    assert timedelta(minutes=10) < await virtual_time_of(platform, trial) < timedelta(minutes=50)


async def test_failures_of_two_kinds_break_no_circuit_and_use_the_retries_up(
    platform: Platform, server: SkippingServer
) -> None:
    platform.provider.faults.plan("agent", "death", "disconnect", "death")
    retry = {**TEN_MINUTES, "max_retries": 2}
    trial = await run(platform, server, retry=retry)
    assert (trial["status"], trial["attempt_number"]) == ("INFRASTRUCTURE_ERROR", 3)
    assert await platform.rows("SELECT FROM job_events WHERE type = 'trial.retry_circuit_broken'") == []
    assert await virtual_time_of(platform, trial) > timedelta(minutes=20)


async def test_what_the_policy_leaves_out_is_not_waited_for(
    platform: Platform, server: SkippingServer
) -> None:
    platform.provider.faults.plan("agent", "death")
    retry = {**TEN_MINUTES, "exclude_exceptions": ["InfrastructureError"]}
    trial = await run(platform, server, retry=retry)
    assert (trial["status"], trial["attempt_number"]) == ("INFRASTRUCTURE_ERROR", 1)
    assert await virtual_time_of(platform, trial) < timedelta(minutes=10)


async def test_a_retry_of_steps_begins_with_the_first_after_its_wait(
    platform: Platform, server: SkippingServer
) -> None:
    await platform.publish("stepped", step_files())
    platform.provider.faults.plan("agent-2", "death")
    trial = await run(platform, server, datasets=[{"name": "stepped"}], retry=TEN_MINUTES)
    assert (trial["status"], trial["attempt_number"], trial["reward"]) == ("SCORED", 2, 1.0)
    assert platform.provider.executions()[-4:] == ["agent-1", "verifier-1", "agent-2", "verifier-2"]
    assert await virtual_time_of(platform, trial) > timedelta(minutes=10)


async def test_a_step_below_its_gate_is_the_end_and_no_failure(
    platform: Platform, server: SkippingServer
) -> None:
    gated = '[[steps]]\nname = "one"\nmin_reward = 0.9\n[[steps]]\nname = "two"\n'
    await platform.publish("stepped", step_files(toml=gated, **{"tests__test.sh": "reward 0.5\n"}))
    trial = await run(platform, server, datasets=[{"name": "stepped"}], retry=TEN_MINUTES)
    assert (trial["status"], trial["attempt_number"]) == ("SCORED", 1)
    assert platform.provider.executions()[-2:] == ["agent-1", "verifier-1"]
    assert await virtual_time_of(platform, trial) < timedelta(minutes=10)


async def test_a_provider_that_answers_429_five_times_is_waited_for(
    platform: Platform, server: SkippingServer
) -> None:
    platform.provider.faults.plan("create", *["429"] * 5)
    trial = await run(platform, server, retry={"max_retries": 0})
    assert (trial["status"], trial["n_retries"]) == ("SCORED", 0)
    assert trial["result"]["x_capacity_wait"]["n_refusals"] == 5
    assert await virtual_time_of(platform, trial) > timedelta(seconds=30)


async def test_a_provider_that_never_has_room_is_given_up_after_an_hour(
    platform: Platform, server: SkippingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "WAIT_FOR_CAPACITY", Pace(900, 900))  # some skips instead of seventy
    platform.provider.faults.plan("create", *["429"] * 20)
    trial = await run(platform, server)
    assert (trial["status"], trial["n_retries"]) == ("INFRASTRUCTURE_ERROR", 0)
    message = trial["result"]["exception_info"]["exception_message"]
    assert message.startswith("the provider had no capacity in 60 minutes of waiting: 429")
    assert timedelta(minutes=30) < await virtual_time_of(platform, trial) <= timedelta(hours=1, minutes=1)


async def test_a_long_wait_for_room_leaves_its_history_behind(
    platform: Platform, server: SkippingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "WAITS_PER_RUN", 3)
    [host] = await platform.rows("SELECT id, memory_mb FROM hosts")
    pool = await platform.db.pool()
    await pool.execute(
        "INSERT INTO box_leases (name, host_id, provider, trial_id, attempt_number, cpus, memory_mb, state,"
        " reserved_at) VALUES ('other', $1, 'local', '-', 1, 1, $2, 'live', now())",
        host["id"],
        host["memory_mb"],
    )
    platform.provider.faults.plan("agent", "death")
    running = asyncio.create_task(run(platform, server, retry={"min_wait_sec": 0.01}))

    async def has_continued() -> bool:
        rows = await platform.rows("SELECT id FROM trials WHERE result ? 'x_capacity_wait'")
        if not rows:
            return False
        newest = await platform.client.get_workflow_handle(f"trial/{rows[0]['id']}").describe()
        return newest.run_id != newest.raw_description.workflow_execution_info.first_run_id

    await until(has_continued)
    await pool.execute("UPDATE box_leases SET state = 'gone' WHERE name = 'other'")
    trial = await running
    assert (trial["status"], trial["attempt_number"]) == ("SCORED", 2)


class BreakerStubs:
    """What the provider's workflow calls; `n_good` creates went well."""

    def __init__(self) -> None:
        self.n_good = 0
        self.written: list[Breaker] = []

    @activity.defn(name=act.COUNT_GOOD_CREATES.name)
    async def count_good(self, window: ProviderWindow) -> GoodCreates:
        return GoodCreates(n=self.n_good)

    @activity.defn(name=act.WRITE_HEALTH.name)
    async def write(self, health: HealthToWrite) -> Nothing:
        self.written.append(health.breaker)
        return Nothing()


def failure(name: str) -> ProviderReport:
    return ProviderReport(trial_id=name, task=name, at=now(), problem="500")


@pytest_asyncio.fixture
async def stubs(server: SkippingServer) -> AsyncIterator[tuple[BreakerStubs, Client]]:
    client = await Client.connect(server.address, namespace="evolve", data_converter=names.DATA_CONVERTER)
    made = BreakerStubs()
    async with Worker(
        client,
        task_queue="breaker",
        workflows=[ProviderWorkflow],
        activities=[made.count_good, made.write],
        workflow_runner=sandboxed(),
    ):
        yield made, client


async def test_a_breaker_opens_probes_and_forgets_what_was(
    server: SkippingServer, stubs: tuple[BreakerStubs, Client]
) -> None:
    """Its probe is never answered, so it probes again; then the second probe's box is made."""
    told, client = stubs
    start = {"provider": "p", "reports": [failure(name) for name in ("a", "b", "c")]}
    await server.start(names.PROVIDER_WORKFLOW, start, workflow_id="breaker-1", queue="breaker")

    async def has_probed_twice() -> bool:
        return [each.state for each in told.written].count(BreakerState.HALF_OPEN) >= 2

    await asyncio.wait_for(until(has_probed_twice), 60)
    handle = client.get_workflow_handle("breaker-1")
    good = ProviderReport(trial_id="a", task="a", at=now())
    await handle.signal(names.SIGNAL_CREATE_ENDED, good)
    await asyncio.wait_for(handle.result(), 60)
    states = [each.state for each in told.written]
    assert states[0] is BreakerState.OPEN
    assert states[-1] is BreakerState.CLOSED
    assert set(states[1:-1]) == {BreakerState.HALF_OPEN}


async def test_failures_among_many_successes_are_forgotten_after_a_while(
    server: SkippingServer, stubs: tuple[BreakerStubs, Client]
) -> None:
    told, client = stubs
    told.n_good = 50
    start = {"provider": "p", "reports": [failure(name) for name in ("a", "b", "c")]}
    await server.start(names.PROVIDER_WORKFLOW, start, workflow_id="breaker-2", queue="breaker")
    handle = client.get_workflow_handle("breaker-2", result_type=Breaker)
    end = await asyncio.wait_for(handle.result(), 60)
    assert (end.state, end.failures, told.written) == (BreakerState.CLOSED, (), [])
