"""Workflow code of today can go on with runs that earlier code began."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from cli.workflow_side import sandboxed, workflow_side

HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))


def replayer() -> Replayer:
    side = workflow_side(runner=sandboxed())
    return Replayer(workflows=side.workflows, data_converter=side.data_converter, workflow_runner=side.runner)


def test_there_are_histories_of_every_story() -> None:
    names = {path.stem for path in HISTORIES}
    assert names >= {
        "job_finished", "job_cancelled", "trial_scored", "trial_cancelled", "trial_retried",
        "trial_circuit_broken", "trial_waited_for_capacity", "dataset_import",
    }  # fmt: skip


@pytest.mark.parametrize(
    "history",
    [WorkflowHistory.from_json(path.stem, path.read_text()) for path in HISTORIES],
    ids=lambda history: history.workflow_id,
)
async def test_a_recorded_history_replays(history: WorkflowHistory) -> None:
    await replayer().replay_workflow(history)
