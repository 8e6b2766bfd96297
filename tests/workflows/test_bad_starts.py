"""A workflow that is started with nonsense fails and says why; it is not tried for ever."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import WorkflowFailureError

from tests.inprocess import Platform
from workflows import names


@pytest.mark.parametrize(
    ("workflow", "argument"),
    [
        (names.JOB_WORKFLOW, {"window": 3}),
        (names.TRIAL_WORKFLOW, {"job_id": "j"}),
        (names.DATASET_IMPORT_WORKFLOW, {}),
    ],
)
async def test_a_start_that_is_no_input_of_the_workflow_fails_it(
    platform: Platform, workflow: str, argument: Any
) -> None:
    handle = await platform.client.start_workflow(
        workflow, argument, id=f"bad-{uuid4().hex[:8]}", task_queue=platform.queue
    )
    with pytest.raises(WorkflowFailureError):
        await asyncio.wait_for(handle.result(), 60)
