"""A provider that makes no boxes stops being asked, is probed, and is asked again when it is well."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import WithStartWorkflowOperation, WorkflowUpdateFailedError
from temporalio.common import WorkflowIDConflictPolicy

from domain import breaker
from domain.breaker import Breaker, BreakerState
from store import provider_health
from store.database import now
from tests.factories import task_files
from tests.inprocess import Platform
from tests.waiting import eventually
from tests.workflows.test_healthchecks import checked
from tests.workflows.test_separate_verifier import separate_task
from workflows import names, options
from workflows.inputs import ProviderInput
from workflows.options import Pace
from workflows.provider import ProviderWorkflow

TASKS = {**task_files("alpha"), **task_files("beta"), **task_files("gamma")}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "WAIT_FOR_ROOM", Pace(0.05, 0.1))
    monkeypatch.setattr(breaker, "FIRST_PAUSE", timedelta(seconds=1))


async def order(platform: Platform, what: str) -> Breaker:
    """As an operator does; the workflow is started where it does not run."""
    start = WithStartWorkflowOperation(
        ProviderWorkflow.run,
        ProviderInput(provider="local"),
        id=names.provider_workflow_id("local"),
        task_queue=platform.queue,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )
    update = names.UPDATE_SET_BREAKER
    return await platform.client.execute_update_with_start_workflow(
        update, what, start_workflow_operation=start, result_type=Breaker
    )


async def start(platform: Platform, files: dict[str, str], **changes: Any) -> Any:
    await platform.publish("demo", files)
    return await go(platform, **changes)


async def go(platform: Platform, **changes: Any) -> Any:
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], **changes}
    return await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )


async def until(platform: Platform, query: str) -> list[Any]:
    """The rows of a query once it has some."""
    while True:
        rows = await platform.rows(query)
        if rows:
            return rows
        await asyncio.sleep(0.02)


async def test_a_provider_that_fails_for_several_trials_is_left_alone_and_probed(platform: Platform) -> None:
    platform.provider.faults.plan("create", *["create-failure"] * 3)
    handle = await start(platform, TASKS, retry={"min_wait_sec": 6, "max_wait_sec": 6})
    opened = await until(platform, "SELECT * FROM provider_health WHERE state = 'open'")
    assert opened[0]["reason"] == "create-failure at create"
    end = await asyncio.wait_for(handle.result(), 120)
    assert end["by_status"]["SCORED"] == 3
    await until(platform, "SELECT FROM provider_health WHERE state = 'closed'")
    trials = await platform.rows("SELECT n_retries FROM trials")
    assert [trial["n_retries"] for trial in trials] == [1, 1, 1]


async def test_an_operator_pauses_a_provider_and_lets_it_go_on(platform: Platform) -> None:
    held = await order(platform, "open")
    assert (held.state, held.is_held) == (BreakerState.OPEN, True)
    handle = await start(platform, task_files("alpha"))
    [trial] = await until(platform, "SELECT * FROM trials WHERE result ? 'x_capacity_wait'")
    assert trial["status"] == "QUEUED"
    assert "an operator has paused" in trial["result"]["x_capacity_wait"]["waiting_for"]
    assert await platform.rows("SELECT FROM box_leases") == []
    assert (await order(platform, "close")).state is BreakerState.CLOSED
    end = await asyncio.wait_for(handle.result(), 120)
    assert end["by_status"]["SCORED"] == 1
    assert (await platform.rows("SELECT n_retries FROM trials"))[0]["n_retries"] == 0


async def test_a_word_that_is_no_order_is_refused(platform: Platform) -> None:
    with pytest.raises(WorkflowUpdateFailedError):
        await order(platform, "maybe")


async def test_only_one_trial_is_let_through_to_probe(platform: Platform) -> None:
    probing = Breaker(state=BreakerState.HALF_OPEN, since=now(), outage_since=now(), reason="500")
    await provider_health.write_health(platform.db, "local", probing)
    async with platform.db.transaction() as connection:
        first = await provider_health.ask_to_dispatch(connection, "local", "one")
        await provider_health.claim_probe(connection, "local", "one")
    async with platform.db.transaction() as connection:
        second = await provider_health.ask_to_dispatch(connection, "local", "two")
        again = await provider_health.ask_to_dispatch(connection, "local", "one")
    assert (first.is_probe, again.is_probe, second.is_probe) == (True, True, False)
    assert second.waiting_for is not None
    await provider_health.write_health(platform.db, "local", probing)  # as a second try does
    async with platform.db.transaction() as connection:
        assert not (await provider_health.ask_to_dispatch(connection, "local", "two")).is_probe
    later = probing.due(now() + timedelta(minutes=10))
    await provider_health.write_health(platform.db, "local", later)
    async with platform.db.transaction() as connection:
        assert (await provider_health.ask_to_dispatch(connection, "local", "two")).is_probe


async def test_after_an_hour_of_outage_trials_fail_instead_of_waiting(platform: Platform) -> None:
    since = now() - timedelta(hours=2)
    down = Breaker(state=BreakerState.OPEN, since=since, outage_since=since, reason="500")
    await provider_health.write_health(platform.db, "local", down)
    handle = await start(platform, task_files("alpha"), retry={"max_retries": 0})
    end = await asyncio.wait_for(handle.result(), 120)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    [trial] = await platform.rows("SELECT result FROM trials")
    result: Any = trial["result"]
    assert "no boxes are made since" in result["exception_info"]["exception_message"]


async def test_a_verifiers_box_that_cannot_be_made_is_told_too(platform: Platform) -> None:
    platform.provider.barriers.hold("create-verifier")
    handle = await start(platform, separate_task(), retry={"max_retries": 0})
    await eventually(lambda: platform.provider.barriers.reached("create-verifier"))
    platform.provider.faults.plan("create", "create-failure")
    platform.provider.barriers.release("create-verifier")
    await asyncio.wait_for(handle.result(), 120)
    breaker_of = platform.client.get_workflow_handle(names.provider_workflow_id("local"))
    [failure] = (await breaker_of.query(names.QUERY_BREAKER, result_type=Breaker)).failures
    assert failure.message == "create-failure at create"


async def begin_probing(platform: Platform) -> None:
    """A breaker whose next trial is its probe, and that waits ten minutes for what that says."""
    probing = Breaker(state=BreakerState.HALF_OPEN, since=now(), outage_since=now(), reason="500")
    await provider_health.write_health(platform.db, "local", probing)
    await platform.client.start_workflow(
        ProviderWorkflow.run,
        ProviderInput(provider="local", breaker=probing),
        id=names.provider_workflow_id("local"),
        task_queue=platform.queue,
    )


async def test_a_probe_whose_box_was_made_says_so_whatever_fails_in_it(platform: Platform) -> None:
    await begin_probing(platform)
    files = task_files("alpha", toml=checked("unhealthy 99"))
    handle = await start(platform, files, retry={"max_retries": 0})
    end = await asyncio.wait_for(handle.result(), 120)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    await asyncio.wait_for(until(platform, "SELECT FROM provider_health WHERE state = 'closed'"), 20)


async def test_a_probe_that_was_stopped_is_another_trials_turn(platform: Platform) -> None:
    await platform.publish("demo", task_files("alpha"))
    await begin_probing(platform)
    platform.provider.barriers.hold("build")
    stopped = await go(platform)
    await eventually(lambda: platform.provider.barriers.reached("build"))
    assert await platform.rows("SELECT FROM provider_health WHERE probe_trial_id IS NOT NULL")
    await stopped.signal(names.SIGNAL_CANCEL)
    assert (await asyncio.wait_for(stopped.result(), 60))["by_status"]["CANCELLED"] == 1
    platform.provider.barriers.release("build")
    end = await asyncio.wait_for((await go(platform)).result(), 60)
    assert end["by_status"]["SCORED"] == 1
