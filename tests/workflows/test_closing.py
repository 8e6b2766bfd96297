"""A trial always settles, and on what it came to, also when its close cannot be done."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from activities import close
from store.incidents import list_incidents
from tests.factories import task_files
from tests.workflows.conftest import Platform
from tests.workflows.test_reaper import reap
from workflows import names


async def settled(platform: Platform, **changes: object) -> Any:
    """The one trial of a job that is over."""
    await platform.publish("demo", task_files("alpha"))
    handle = await platform.client.start_workflow(
        names.JOB_WORKFLOW,
        {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], **changes},
        id=f"my-job-{uuid4().hex[:6]}",
        task_queue=platform.queue,
    )
    end = await asyncio.wait_for(handle.result(), 60)
    assert end["status"] == "COMPLETED"
    [trial] = await platform.rows("SELECT * FROM trials")
    assert trial["phase"] is None
    return trial


async def refuse(*_: object) -> None:
    raise ValueError("it will not go")


async def test_a_box_that_cannot_be_ended_takes_no_score_and_is_an_incident(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform.provider, "destroy", refuse)
    trial = await settled(platform)
    assert (trial["status"], trial["reward"], trial["n_retries"]) == ("SCORED", 1.0, 0)
    assert trial["result"]["verifier_result"] == {"rewards": {"reward": 1.0}}
    assert trial["result"]["x_box_left"] == "ValueError: it will not go"
    assert "x_left_out" not in trial["result"]
    [incident] = await list_incidents(platform.db, is_open_only=True)
    [lease] = await platform.rows("SELECT name, state FROM box_leases")
    assert (incident["kind"], incident["subject"]) == ("box_left", lease["name"])
    assert lease["state"] == "ending"
    files = await platform.rows("SELECT path FROM trial_files")
    assert "verifier/test-stdout.txt" in {file["path"] for file in files}
    monkeypatch.undo()
    await platform.rows("UPDATE trials SET finished_at = now() - interval '1 hour'")
    await reap(platform)
    assert await list_incidents(platform.db, is_open_only=True) == []
    assert await platform.rows("SELECT DISTINCT state FROM box_leases") == [{"state": "gone"}]


async def test_outputs_that_a_failed_close_did_not_keep_are_told(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(close, "begun_runs", refuse)
    trial = await settled(platform)
    assert (trial["status"], trial["reward"]) == ("SCORED", 1.0)
    [left_out] = trial["result"]["x_left_out"]
    assert left_out.endswith("it will not go")


async def test_a_failed_attempt_keeps_its_failure_and_has_no_successor_beside_its_box(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(close, "begun_runs", refuse)
    platform.provider.faults.plan("create", "create-failure")
    trial = await settled(platform, retry={"max_retries": 3})
    assert (trial["status"], trial["n_retries"]) == ("INFRASTRUCTURE_ERROR", 0)
    assert "create-failure" in trial["result"]["exception_info"]["exception_message"]


async def test_a_box_that_is_ended_at_a_later_try_is_not_left(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroy, asked = platform.provider.destroy, list[str]()

    async def at_last(box_id: str) -> None:
        asked.append(box_id)
        if len(asked) < 2:
            await refuse()
        await destroy(box_id)

    monkeypatch.setattr(platform.provider, "destroy", at_last)
    trial = await settled(platform)
    assert (trial["status"], trial["result"]["x_box_left"]) == ("SCORED", None)
    assert await list_incidents(platform.db, is_open_only=False) == []
