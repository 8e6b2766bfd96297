"""The agent meets an environment only once that is up; one that never is costs nothing."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from tests.factories import TASK_TOML, task_files
from tests.inprocess import Platform
from workflows import names


def checked(command: str) -> str:
    return f'{TASK_TOML}\n[environment.healthcheck]\ncommand = "{command}"\ninterval_sec = 0.01\n'


async def run(platform: Platform, toml: str) -> Any:
    await platform.publish("demo", task_files("alpha", toml=toml))
    body = {
        "datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], "retry": {"max_retries": 0},
    }  # fmt: skip
    await asyncio.wait_for(
        platform.client.execute_workflow(
            names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
        ),
        60,
    )
    [trial] = await platform.rows("SELECT status, reward, result FROM trials")
    return trial


async def test_a_slow_environment_is_waited_for(platform: Platform) -> None:
    trial = await run(platform, checked("unhealthy 2"))
    assert (trial["status"], trial["reward"]) == ("SCORED", 1.0)


async def test_one_that_never_comes_up_fails_before_the_agent(platform: Platform) -> None:
    trial = await run(platform, checked("unhealthy 99"))
    assert trial["status"] == "INFRASTRUCTURE_ERROR"
    assert "healthcheck failed 3 times" in trial["result"]["exception_info"]["exception_message"]
    assert trial["result"]["agent_result"] is None
