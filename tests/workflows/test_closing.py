"""A trial always settles, also when its box cannot be ended."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from tests.factories import task_files
from tests.workflows.conftest import Platform
from workflows import names


async def test_a_box_that_cannot_be_ended_does_not_hold_its_job(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def destroy(box_id: str) -> None:
        raise ValueError(f"{box_id} will not go")

    await platform.publish("demo", task_files("alpha"))
    monkeypatch.setattr(platform.provider, "destroy", destroy)
    handle = await platform.client.start_workflow(
        names.JOB_WORKFLOW,
        {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]},
        id=f"my-job-{uuid4().hex[:6]}",
        task_queue=platform.queue,
    )
    end = await asyncio.wait_for(handle.result(), 60)
    assert end["status"] == "COMPLETED"
    [trial] = await platform.rows("SELECT status, reward, exception_type, phase FROM trials")
    assert trial == {
        "status": "INFRASTRUCTURE_ERROR", "reward": None, "exception_type": "InfrastructureError",
        "phase": None,
    }  # fmt: skip
