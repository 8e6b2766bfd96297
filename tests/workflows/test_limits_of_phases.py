"""What an attempt may spend on each of its phases, stretched by the job."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import pytest

from activities.trial_context import TrialContext
from domain.jobs import TimeoutMultipliers
from domain.task_scalars import MAX_BUILD_SEC
from tests.factories import task_files
from tests.inprocess import Platform
from workflows import names


async def test_a_harness_that_is_not_set_up_in_time_ends_the_attempt(platform: Platform) -> None:
    await platform.publish("demo", task_files("alpha"))
    platform.provider.barriers.hold("install")
    body = {
        "datasets": [{"name": "demo"}],
        "agents": [{"name": "oracle"}],
        "agent_setup_timeout_multiplier": 0.001,
        "retry": {"max_retries": 0},
    }
    handle = await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )
    end: Any = await asyncio.wait_for(handle.result(), 60)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 1
    [trial] = await platform.rows("SELECT result FROM trials")
    told = str(trial["result"])
    assert "was not set up in the box within 0.36 s" in told
    assert "AgentSetupError" in told


@pytest.mark.parametrize(("factor", "limit_sec"), [(None, 600), (2.0, 1200), (100.0, MAX_BUILD_SEC)])
def test_a_build_is_stretched_up_to_what_one_try_may_take(factor: float | None, limit_sec: float) -> None:
    plan = SimpleNamespace(multipliers=TimeoutMultipliers(environment_build=factor))
    context = cast("TrialContext", SimpleNamespace(plan=plan))
    assert TrialContext.build_limit_sec(context, 600) == limit_sec
