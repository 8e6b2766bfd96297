"""Temporal's own cancel at the worst moment: recorded histories with a cancel put into them."""

from __future__ import annotations

import json
import re
from typing import Any

from temporalio.client import WorkflowHistory

from tests.replay.fingerprint import HISTORIES, commands_of

CANCEL: dict[str, Any] = {
    "eventTime": "2026-01-01T00:00:00Z",
    "eventType": "EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED",
    "workflowExecutionCancelRequestedEventAttributes": {"identity": "an operator"},
}


def cancelled_before(name: str, event_type: str) -> WorkflowHistory:
    """A recorded history in which the workflow itself is cancelled right before an event."""
    text = (HISTORIES / f"{name}.json").read_text()
    at = next(int(e["eventId"]) for e in json.loads(text)["events"] if e["eventType"] == event_type)

    def later(found: re.Match[str]) -> str:
        return f'{found[1]}"{int(found[2]) + (int(found[2]) >= at)}"'

    moved = json.loads(re.sub(r'("\w*[eE]ventId":\s*)"(\d+)"', later, text))
    moved["events"].insert(at - 1, {"eventId": str(at), **CANCEL})
    return WorkflowHistory.from_json(name, moved)


async def test_a_job_that_is_taken_up_to_be_cancelled_is_finished_all_the_same() -> None:
    """While it tells its trials: it ends as the store says it does, not as Cancelled before that."""
    told = "EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_CANCEL_REQUESTED"
    commands = await commands_of(cancelled_before("job_taken_up_to_cancel", told))
    assert commands[-1].startswith("complete_workflow_execution")
    assert any("finish_job" in command for command in commands)
