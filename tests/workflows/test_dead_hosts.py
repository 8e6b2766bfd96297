"""A host that is dead holds its trials no longer: they end without their boxes, or run again elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cli import hosts_side
from domain.reaping import LeftoverKind
from store.database import Database
from tests.api.conditions import until
from tests.factories import task_files
from tests.inprocess import Platform
from tests.waiting import eventually
from tests.workflows.test_dataset_import import add_host
from tests.workflows.test_reaper import HOUR, boxes, found, grow_old, only_trial, reap
from workflows import names

QUICK = {"max_retries": 1, "min_wait_sec": 0.01}
NO_RETRY = {"max_retries": 0}


async def start(platform: Platform, retry: dict[str, Any]) -> Any:
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], "retry": retry}
    return await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )


async def start_on_dying_host(platform: Platform, retry: dict[str, Any]) -> Any:
    """A job whose one trial was placed on the host `dead`, which nobody works for, just before it died."""
    await platform.publish("demo", task_files("alpha"))
    await add_host(platform, "dead", "local")
    await platform.rows("UPDATE hosts SET memory_mb = 2000000 WHERE id = 'dead'")
    handle = await start(platform, retry)
    await until(platform.db, "SELECT EXISTS (SELECT FROM box_leases)")
    await platform.rows("UPDATE hosts SET lease_expires_at = now() - interval '1 hour' WHERE id = 'dead'")
    return handle


async def freeze(platform: Platform) -> str:
    """Our host says no longer that it lives, and another does whose work is done by the same process."""
    [ours] = await platform.rows("SELECT id FROM hosts")
    await platform.rows(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    await platform.rows("UPDATE hosts SET lease_expires_at = now() - interval '1 hour'")
    await platform.rows(
        "CREATE TRIGGER frozen BEFORE INSERT OR UPDATE ON hosts FOR EACH ROW"
        f" WHEN (NEW.id = '{ours['id']}') EXECUTE FUNCTION refuse()"
    )
    await platform.rows(
        "INSERT INTO hosts SELECT 'second', providers, default_provider, '', queue, follow_queue, cpus,"
        " memory_mb, code_version, now() + interval '1 hour' FROM hosts"
    )
    return str(ours["id"])


async def thaw(platform: Platform) -> None:
    await platform.rows("DROP TRIGGER frozen ON hosts")
    await platform.rows("UPDATE hosts SET lease_expires_at = now() + interval '1 minute'")


async def leases(platform: Platform) -> list[Any]:
    return await platform.rows("SELECT name FROM box_leases WHERE state <> 'gone'")


async def test_a_trial_of_a_dead_host_runs_again_on_one_that_lives(platform: Platform) -> None:
    job = await start_on_dying_host(platform, QUICK)
    trial = await only_trial(platform)
    told = found(await reap(platform, is_dry=True), LeftoverKind.TRIAL)
    assert list(told) == [trial["id"]]
    assert "its host dead is away since" in told[trial["id"]]
    assert list(found(await reap(platform), LeftoverKind.TRIAL)) == [trial["id"]]
    end = await asyncio.wait_for(job.result(), 60)
    assert end["by_status"]["SCORED"] == 1
    [retired] = (await only_trial(platform))["retries"]
    assert retired["x_signature"] == "sandbox_death"
    assert await leases(platform) == []


async def test_without_a_retry_it_ends_as_what_it_is(platform: Platform) -> None:
    job = await start_on_dying_host(platform, NO_RETRY)
    await reap(platform)
    end = await asyncio.wait_for(job.result(), 60)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    message = (await only_trial(platform))["result"]["exception_info"]["exception_message"]
    assert message.startswith("its host dead is away since")
    assert await leases(platform) == []


async def test_a_trial_that_is_cancelled_on_a_dead_host_ends(platform: Platform) -> None:
    job = await start_on_dying_host(platform, QUICK)
    await job.signal(names.SIGNAL_CANCEL)
    await until_closing(platform, (await only_trial(platform))["id"])
    await reap(platform)
    end = await asyncio.wait_for(job.result(), 60)
    assert (end["status"], end["by_status"]["CANCELLED"]) == ("CANCELLED", 1)
    assert await leases(platform) == []


async def until_closing(platform: Platform, trial_id: str) -> None:
    """Until the trial's close waits for its host."""
    handle = platform.client.get_workflow_handle(f"trial/{trial_id}")
    async with asyncio.timeout(30):
        while True:
            pending = (await handle.describe()).raw_description.pending_activities
            if "close_trial" in {each.activity_type.name for each in pending}:
                return
            await asyncio.sleep(0.05)


async def test_a_trial_whose_workflow_is_gone_too_is_closed(platform: Platform) -> None:
    job = await start_on_dying_host(platform, QUICK)
    trial = await only_trial(platform)
    await platform.client.get_workflow_handle(f"trial/{trial['id']}").terminate()
    await platform.rows("UPDATE trials SET started_at = started_at - interval '1 hour'")
    async with asyncio.timeout(60):
        while not (await only_trial(platform))["finished_at"]:
            await reap(platform)  # first it is taken over, then told
    end = await asyncio.wait_for(job.result(), 60)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    assert await leases(platform) == []


async def test_a_frozen_host_that_comes_back_disturbs_nothing_and_ends_its_box(platform: Platform) -> None:
    await platform.publish("demo", task_files("alpha"))
    platform.provider.barriers.hold("agent")
    job = await start(platform, QUICK)
    await eventually(lambda: platform.provider.barriers.reached("agent"))
    await freeze(platform)
    [left] = boxes(platform)
    await reap(platform)
    await until(platform.db, "SELECT attempt_number = 2 AND host_id = 'second' FROM trials")
    platform.provider.barriers.release("agent")
    end = await asyncio.wait_for(job.result(), 60)
    assert end["by_status"]["SCORED"] == 1
    assert boxes(platform) == {left}
    await thaw(platform)
    await platform.rows("UPDATE box_leases SET gone_at = gone_at - interval '1 hour'")
    for tag in platform.provider.boxes.glob("*/tag.json"):
        grow_old(tag, HOUR)
    assert found(await reap(platform), LeftoverKind.BOX) == {left: "its lease has ended"}
    assert boxes(platform) == set()
    trial = await only_trial(platform)
    assert (trial["status"], trial["attempt_number"], len(trial["retries"])) == ("SCORED", 2, 1)


async def test_a_verdict_stands_though_the_host_died_before_the_box_was_kept(platform: Platform) -> None:
    await platform.publish("demo", task_files("alpha"))
    platform.provider.barriers.hold("persist")
    job = await start(platform, QUICK)
    await eventually(lambda: platform.provider.barriers.reached("persist"))
    await freeze(platform)
    await reap(platform)
    end = await asyncio.wait_for(job.result(), 60)
    assert (end["by_status"]["SCORED"], end["mean_reward"]) == (1, 1.0)
    trial = await only_trial(platform)
    assert trial["attempt_number"] == 1
    [told] = trial["result"]["x_left_out"]
    assert told.startswith("what was in its box: its host")


async def test_an_operators_word_ends_the_wait_at_once(
    platform: Platform, db: Database, temporal: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EVOLVE_DATABASE_URL", db.url)
    monkeypatch.setenv("EVOLVE_TEMPORAL_ADDRESS", temporal)
    monkeypatch.setenv("EVOLVE_HOME", str(tmp_path / "home"))
    job = await start_on_dying_host(platform, QUICK)
    dropped = await hosts_side.drop_host("dead")
    assert (dropped.n_trials, dropped.n_told) == (1, 1)
    end = await asyncio.wait_for(job.result(), 60)
    assert end["by_status"]["SCORED"] == 1
    [retired] = (await only_trial(platform))["retries"]
    assert retired["exception_info"]["exception_message"] == "an operator dropped its host dead"
