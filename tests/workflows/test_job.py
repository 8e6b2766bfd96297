"""A job from request to result, on real Temporal and Postgres, with boxes that are directories."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from activities import following
from tests.factories import task_files
from tests.inprocess import Platform
from tests.waiting import eventually
from workflows import names, options


def two_tasks() -> dict[str, str]:
    return {**task_files("alpha"), **task_files("beta")}


async def start(platform: Platform, body: dict[str, Any]) -> Any:
    """As a Temporal client does: by name, with JSON."""
    return await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )


async def test_oracle_scores_one_and_nop_zero(platform: Platform) -> None:
    assert await platform.publish("demo", two_tasks()) == "COMPLETED"
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}, {"name": "nop"}]}
    handle = await start(platform, body)
    end = await asyncio.wait_for(handle.result(), 240)
    assert end["status"] == "COMPLETED"
    assert end["by_status"]["SCORED"] == 4
    assert end["mean_reward"] == 0.5
    trials = await platform.rows("SELECT task_name, arm_index, status, reward FROM trials ORDER BY index")
    assert [(t["task_name"], t["arm_index"], t["reward"]) for t in trials] == [
        ("alpha", 0, 1.0), ("alpha", 1, 0.0), ("beta", 0, 1.0), ("beta", 1, 0.0),
    ]  # fmt: skip
    assert await platform.provider.list(end["job_id"]) == []
    progress = await handle.query(names.QUERY_PROGRESS)
    assert (progress["n_settled"], progress["n_running"], progress["n_pending"]) == (4, 0, 0)


async def test_events_are_gapless_and_each_trial_settles_once(platform: Platform) -> None:
    await platform.publish("demo", two_tasks())
    handle = await start(platform, {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]})
    end = await asyncio.wait_for(handle.result(), 240)
    events = await platform.rows(
        "SELECT seq, type FROM job_events WHERE job_id = $1 ORDER BY seq", end["job_id"]
    )
    assert [e["seq"] for e in events] == list(range(1, len(events) + 1))
    types = [e["type"] for e in events]
    assert types[:2] == ["job.created", "job.running"]
    assert types[-1] == "job.completed"
    assert types.count("trial.running") == types.count("trial.scoring") == types.count("trial.settled") == 2


async def test_a_cancel_reaches_running_and_queued_trials(platform: Platform) -> None:
    await platform.publish("demo", two_tasks())
    platform.provider.barriers.hold("agent")
    body = {
        "datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}],
        "n_attempts": 3, "n_concurrent_trials": 2,
    }  # fmt: skip
    handle = await start(platform, body)
    await eventually(lambda: platform.provider.barriers.reached("agent"))
    await handle.signal(names.SIGNAL_CANCEL)
    end = await asyncio.wait_for(handle.result(), 240)
    assert end["status"] == "CANCELLED"
    assert end["by_status"]["CANCELLED"] == 6


async def test_temporals_own_cancel_means_the_same(platform: Platform) -> None:
    await platform.publish("demo", two_tasks())
    platform.provider.barriers.hold("agent")
    handle = await start(platform, {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]})
    await eventually(lambda: platform.provider.barriers.reached("agent"))
    await handle.cancel()
    end = await asyncio.wait_for(handle.result(), 240)
    assert end["status"] == "CANCELLED"


async def test_a_trial_that_an_operator_terminates_is_closed_and_the_job_ends(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "RECONCILE_AFTER", timedelta(seconds=1))
    await platform.publish("demo", task_files("alpha"))
    platform.provider.barriers.hold("agent")
    handle = await start(platform, {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]})
    await eventually(lambda: platform.provider.barriers.reached("agent"))
    [trial] = await platform.rows("SELECT id FROM trials")
    await platform.client.get_workflow_handle(f"trial/{trial['id']}").terminate("an operator")
    end = await asyncio.wait_for(handle.result(), 240)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    [settled] = await platform.rows("SELECT result FROM trials")
    assert "ended from outside" in settled["result"]["exception_info"]["exception_message"]
    assert await platform.rows("SELECT FROM box_leases WHERE state <> 'gone'") == []


async def test_output_past_the_ceiling_is_left_out_and_told(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "STREAM_MAX_BYTES", 4)
    await platform.publish("demo", task_files("alpha"))
    handle = await start(platform, {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]})
    end = await asyncio.wait_for(handle.result(), 240)
    assert end["mean_reward"] == 1.0
    [kept] = await platform.rows("SELECT size_bytes FROM trial_files WHERE path = 'verifier/test-stdout.txt'")
    assert kept["size_bytes"] == 4
    [trial] = await platform.rows("SELECT result FROM trials")
    assert trial["result"]["x_left_out"] == ["verifier/test-stdout.txt: what came after 4 bytes"]
