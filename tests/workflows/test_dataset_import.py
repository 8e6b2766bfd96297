"""Where the tasks of a dataset are built."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.worker import Worker

from activities.signatures import BUILD_TASK, Nothing, TaskToBuild
from tests.api.conditions import until
from tests.factories import TASK_TOML, task_files
from tests.inprocess import Platform
from workflows import names, options

QUEUED = timedelta(seconds=2)


async def add_host(platform: Platform, host_id: str, provider: str, *, lease: str = "1 hour") -> None:
    """A host that nobody works for, with a newer lease than ours."""
    await until(platform.db, "SELECT EXISTS (SELECT FROM hosts)")
    await platform.rows(
        "INSERT INTO hosts SELECT $1::text, $2, $3, '', $1::text, $1::text || '-follow', cpus, memory_mb,"
        " code_version, now() + $4::text::interval FROM hosts LIMIT 1",
        host_id,
        {provider: {"ok": True}},
        provider,
        lease,
    )


async def built_images(platform: Platform) -> list[Any]:
    return [row["images"] for row in await platform.rows("SELECT images FROM dataset_tasks")]


async def test_a_task_is_built_by_a_host_that_serves_the_provider_it_is_built_for(
    platform: Platform,
) -> None:
    await add_host(platform, "other", "docker")
    async with asyncio.timeout(30):
        assert await platform.publish("demo", task_files("alpha")) == "COMPLETED"
    assert [list(images) for images in await built_images(platform)] == [["local"]]


async def test_a_build_that_its_host_does_not_take_up_goes_to_one_that_lives(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "BUILD_ON_HOST", replace(options.BUILD_ON_HOST, queued=QUEUED))
    await add_host(platform, "dying", "local")
    importing = asyncio.create_task(platform.publish("demo", task_files("alpha")))
    await until_queued(platform)
    await platform.rows("UPDATE hosts SET lease_expires_at = now() - interval '1 hour' WHERE id = 'dying'")
    assert await asyncio.wait_for(importing, 60) == "COMPLETED"
    assert [list(images) for images in await built_images(platform)] == [["local"]]


async def test_a_build_whose_host_died_in_it_is_done_by_one_that_lives(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "BUILD_ON_HOST", replace(options.BUILD_ON_HOST, queued=QUEUED))
    await add_host(platform, "dying", "local")
    is_begun = asyncio.Event()

    @activity.defn(name=BUILD_TASK.name)
    async def build(_: TaskToBuild) -> Nothing:
        is_begun.set()
        await asyncio.Event().wait()
        return Nothing()

    async with Worker(platform.client, task_queue="dying-follow", activities=[build]):
        importing = asyncio.create_task(platform.publish("demo", task_files("alpha")))
        await asyncio.wait_for(is_begun.wait(), 30)
        await platform.rows("UPDATE hosts SET lease_expires_at = now() - interval '1 day' WHERE id = 'dying'")
    assert await asyncio.wait_for(importing, 60) == "COMPLETED"
    assert [list(images) for images in await built_images(platform)] == [["local"]]


async def test_a_lone_host_that_is_away_is_waited_for(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "BUILD_ON_HOST", replace(options.BUILD_ON_HOST, queued=QUEUED))
    monkeypatch.setattr(options, "BUILD_ON_HOST_AGAIN", options.BUILD_ON_HOST)
    await add_host(platform, "away", "docker", lease="-1 hour")
    toml = TASK_TOML + 'docker_image = "pinned:1"\n'  # which local refuses
    importing = asyncio.create_task(platform.publish("demo", task_files("alpha", toml=toml)))
    await until_queued(platform)
    n_asked = await events_of(platform, "find_builder")
    async with asyncio.timeout(60):
        while await events_of(platform, "find_builder") < n_asked + 2:  # noqa: ASYNC110 - Temporal's
            await asyncio.sleep(0.1)
    assert not importing.done()
    [task] = await platform.rows("SELECT state FROM dataset_tasks")
    assert task["state"] == "PENDING"
    await platform.rows("DELETE FROM hosts WHERE id = 'away'")
    assert await asyncio.wait_for(importing, 60) == "FAILED"  # now nobody serves it at all


async def image_of_a_trial(platform: Platform) -> dict[str, Any]:
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]}
    job = await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )
    end = await asyncio.wait_for(job.result(), 60)
    [trial] = await platform.rows("SELECT result FROM trials WHERE job_id = $1", end["job_id"])
    return trial["result"]["x_image"]  # pyright: ignore[reportIndexIssue]


async def test_a_trial_says_when_its_image_is_not_the_one_that_was_published(platform: Platform) -> None:
    await platform.publish("demo", task_files("alpha"))
    assert "rebuilt" not in await image_of_a_trial(platform)
    await platform.rows("""UPDATE dataset_tasks SET images = '{"local": {"id": "of another host"}}'""")
    assert (await image_of_a_trial(platform))["rebuilt"] is True


async def the_import(platform: Platform) -> Any:
    await until(platform.db, "SELECT EXISTS (SELECT FROM dataset_imports)")
    [row] = await platform.rows("SELECT id FROM dataset_imports")
    return platform.client.get_workflow_handle(names.dataset_import_workflow_id(str(row["id"])))


async def until_queued(platform: Platform) -> None:
    """Until a build waits for its host."""
    await until(platform.db, "SELECT EXISTS (SELECT FROM dataset_tasks)")
    async with asyncio.timeout(30):
        while not await events_of(platform, "build_task"):  # noqa: ASYNC110 - Temporal's
            await asyncio.sleep(0.05)


async def events_of(platform: Platform, activity: str) -> int:
    """How often an activity was scheduled."""
    history = await (await the_import(platform)).fetch_history()
    scheduled = [each.activity_task_scheduled_event_attributes.activity_type.name for each in history.events]
    return scheduled.count(activity)
