"""What today's workflow code commands over each recorded history, with every timeout and retry.

Replay itself sees a command that is another or elsewhere; it does not see a changed timeout, heartbeat,
retry or sleep. These are written into `fingerprints.json`, which a change on purpose rewrites:
`python -m tests.replay.fingerprint`.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_commands import WorkflowCommand
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, WorkflowInstance
from temporalio.worker import WorkflowInstanceDetails as Details

from cli.workflow_side import workflow_side

HISTORIES = Path(__file__).parent / "histories"
FINGERPRINTS = Path(__file__).parent / "fingerprints.json"
# Everything else names one run: ids, arguments, times.
KEPT = (
    "activity_type",
    "workflow_type",
    "signal_name",
    "schedule_to_close_timeout",
    "schedule_to_start_timeout",
    "start_to_close_timeout",
    "start_to_fire_timeout",
    "local_retry_threshold",
    "heartbeat_timeout",
    "retry_policy",
    "cancellation_type",
    "parent_close_policy",
    "workflow_id_reuse_policy",
)


class NotingRunner(UnsandboxedWorkflowRunner):
    """Runs workflows as production does, and notes what they command."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[str] = []

    def create_instance(self, det: Details) -> WorkflowInstance:
        instance = super().create_instance(det)
        activate = instance.activate

        def noting(act: WorkflowActivation) -> WorkflowActivationCompletion:
            completion = activate(act)
            self.commands += [_line(command) for command in completion.successful.commands]
            return completion

        instance.activate = noting
        return instance


def _line(command: WorkflowCommand) -> str:
    kind = command.WhichOneof("variant") or "nothing"
    said: dict[str, Any] = MessageToDict(getattr(command, kind), preserving_proto_field_name=True)
    kept = {name: said[name] for name in KEPT if name in said}
    if "task_queue" in said:
        kept["queue"] = _place(str(said["task_queue"]))
    return f"{kind} {json.dumps(kept)}"


def _place(queue: str) -> str:
    """Queues are named after their host or run."""
    if not queue.startswith("host-"):
        return "shared"
    return "follow" if queue.endswith("-follow") else "host"


def histories() -> list[WorkflowHistory]:
    """The recorded ones, each called by its file."""
    paths = sorted(HISTORIES.glob("*.json"))
    return [WorkflowHistory.from_json(path.stem, path.read_text()) for path in paths]


async def commands_of(history: WorkflowHistory) -> list[str]:
    """Raises what `Replayer` raises where the code does not fit the history."""
    runner = NotingRunner()
    side = workflow_side(runner=runner)
    replayer = Replayer(workflows=side.workflows, data_converter=side.data_converter, workflow_runner=runner)
    await replayer.replay_workflow(history)
    return runner.commands


async def fingerprints() -> dict[str, list[str]]:
    """By history."""
    return {history.workflow_id: await commands_of(history) for history in histories()}


if __name__ == "__main__":
    FINGERPRINTS.write_text(json.dumps(asyncio.run(fingerprints()), indent=1) + "\n")
