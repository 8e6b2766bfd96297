"""A paused job: what runs finishes, nothing more starts, and its status stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from store.accounts import caller_of_owner
from store.job_verbs import request_pause
from tests.api.conditions import until
from tests.factories import task_files
from tests.finished_jobs import accept
from tests.inprocess import Platform
from tests.waiting import eventually
from workflows import names, options

BODY = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], "n_concurrent_trials": 1}


async def start_held(platform: Platform) -> Any:
    """A job of three trials, one at a time, whose first is held in its agent."""
    await platform.publish("demo", {**task_files("a"), **task_files("b"), **task_files("c")})
    platform.provider.barriers.hold("agent")
    handle = await platform.client.start_workflow(
        names.JOB_WORKFLOW,
        BODY,
        id=f"my-job-{uuid4().hex[:6]}",
        task_queue=platform.queue,
    )
    await eventually(lambda: platform.provider.barriers.reached("agent"))
    return handle


async def pause_and_let_the_first_finish(platform: Platform, handle: Any) -> None:
    await handle.signal(names.SIGNAL_SET_PAUSED, args=[7, True])
    platform.provider.barriers.release("agent")
    progress = await progress_once(handle, lambda told: told["n_settled"] == 1)
    assert (progress["is_paused"], progress["n_running"], progress["n_pending"]) == (True, 0, 2)


async def progress_once(handle: Any, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the job says of itself once the condition holds."""
    async with asyncio.timeout(120):
        while not condition(told := await handle.query(names.QUERY_PROGRESS)):  # noqa: ASYNC110 - Temporal's
            await asyncio.sleep(0.02)
    return told


async def statuses(platform: Platform) -> list[object]:
    return [row["status"] for row in await platform.rows("SELECT status FROM trials ORDER BY index")]


async def test_a_pause_lets_running_trials_finish_and_an_unpause_goes_on(platform: Platform) -> None:
    handle = await start_held(platform)
    await pause_and_let_the_first_finish(platform, handle)
    assert await statuses(platform) == ["SCORED", "QUEUED", "QUEUED"]
    # A word that is older than the last, or the same again, changes nothing.
    await handle.signal(names.SIGNAL_SET_PAUSED, args=[6, False])
    await handle.signal(names.SIGNAL_SET_PAUSED, args=[7, True])
    assert (await handle.query(names.QUERY_PROGRESS))["is_paused"]
    await handle.signal(names.SIGNAL_SET_PAUSED, args=[8, False])
    end = await asyncio.wait_for(handle.result(), 240)
    assert (end["status"], end["by_status"]["SCORED"]) == ("COMPLETED", 3)


async def test_a_pause_is_carried_into_the_next_run(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "TRIALS_PER_RUN", 1)
    handle = await start_held(platform)
    await pause_and_let_the_first_finish(platform, handle)
    newest = platform.client.get_workflow_handle(handle.id)
    # Any word makes it look at how long it has become; this one asks for nothing.
    await newest.signal(names.SIGNAL_STOP_TRIALS, [0])
    async with asyncio.timeout(60):
        while (await newest.describe()).run_id == handle.first_execution_run_id:  # noqa: ASYNC110 - Temporal's
            await asyncio.sleep(0.02)
    await newest.signal(names.SIGNAL_SET_PAUSED, args=[6, False])
    assert (await newest.query(names.QUERY_PROGRESS))["is_paused"]
    await newest.signal(names.SIGNAL_SET_PAUSED, args=[8, False])
    end = await asyncio.wait_for(newest.result(), 240)
    assert end["by_status"]["SCORED"] == 3


async def test_a_paused_job_can_be_cancelled(platform: Platform) -> None:
    handle = await start_held(platform)
    await pause_and_let_the_first_finish(platform, handle)
    await handle.signal(names.SIGNAL_CANCEL)
    end = await asyncio.wait_for(handle.result(), 240)
    assert (end["status"], end["by_status"]["CANCELLED"]) == ("CANCELLED", 2)


async def test_a_job_that_was_paused_before_it_began_starts_nothing(platform: Platform) -> None:
    """The accept reads it, so that no trial slips through before the word arrives."""
    await platform.publish("demo", {**task_files("a"), **task_files("b")})
    job_id = await accept(platform.db, sandbox_provider="local")
    caller = await caller_of_owner(platform.db, None)
    await request_pause(platform.db, caller, job_id, is_paused=True)
    handle = await platform.client.start_workflow(
        names.JOB_WORKFLOW, {"job_id": job_id}, id=names.job_workflow_id(job_id), task_queue=platform.queue
    )
    progress = await progress_once(handle, lambda told: told["n_total_trials"] == 2)
    assert (progress["is_paused"], progress["n_running"], progress["n_pending"]) == (True, 0, 2)
    [job] = await platform.rows("SELECT status, paused_at IS NOT NULL AS is_paused FROM jobs")
    assert job == {"status": "RUNNING", "is_paused": True}
    await request_pause(platform.db, caller, job_id, is_paused=False)
    await handle.signal(names.SIGNAL_SET_PAUSED, args=[1, False])
    end = await asyncio.wait_for(handle.result(), 240)
    assert end["by_status"]["SCORED"] == 2


async def test_an_attempt_that_is_owed_a_retry_waits_for_the_end_of_a_pause(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "WAIT_FOR_ROOM", options.Pace(0.1, 0.1))
    await platform.publish("demo", task_files("a"))
    platform.provider.barriers.hold("agent")
    body = {**BODY, "retry": {"min_wait_sec": 0.01}}
    handle = await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )
    await eventually(lambda: platform.provider.barriers.reached("agent"))
    caller = await caller_of_owner(platform.db, None)
    [job] = await platform.rows("SELECT id FROM jobs")
    await request_pause(platform.db, caller, str(job["id"]), is_paused=True)
    platform.provider.faults.plan("agent", "death")
    wait = "result #>> '{x_capacity_wait,waiting_for}' = 'the job is paused'"
    await until(platform.db, f"SELECT EXISTS (SELECT FROM trials WHERE {wait} AND status = 'QUEUED')")
    await request_pause(platform.db, caller, str(job["id"]), is_paused=False)
    platform.provider.barriers.release("agent")
    end = await asyncio.wait_for(handle.result(), 240)
    assert end["by_status"]["SCORED"] == 1
    [trial] = await platform.rows("SELECT n_retries FROM trials")
    assert trial["n_retries"] == 1
