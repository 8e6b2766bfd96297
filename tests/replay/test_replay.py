"""Workflow code of today can go on with runs that earlier code began, and commands what it commanded."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from activities import signatures
from cli.workflow_side import sandboxed, workflow_side
from tests.replay.fingerprint import FINGERPRINTS, commands_of, histories
from workflows import options
from workflows.options import Limits, Pace

HISTORIES = histories()
BY_NAME = {history.workflow_id: history for history in HISTORIES}
COMMITTED: dict[str, list[str]] = json.loads(FINGERPRINTS.read_text())


def replayer() -> Replayer:
    side = workflow_side(runner=sandboxed())
    return Replayer(workflows=side.workflows, data_converter=side.data_converter, workflow_runner=side.runner)


def test_there_are_histories_of_every_story() -> None:
    assert set(BY_NAME) >= {
        "job_finished", "job_cancelled", "trial_scored", "trial_cancelled", "trial_retried",
        "trial_circuit_broken", "trial_cancelled_in_back_off", "trial_waited_for_capacity", "provider_held",
        "provider_failed", "reaper", "job_taken_up_to_cancel", "dataset_import",
        "dataset_import_of_one_host", "archive", "trial_multi_step", "job_regrade", "trial_regrade",
        "job_regrade_of_trial", "trial_regrade_retried", "trial_host_lost",
    }  # fmt: skip


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.workflow_id)
async def test_a_recorded_history_replays(history: WorkflowHistory) -> None:
    await replayer().replay_workflow(history)


def test_every_history_has_a_fingerprint() -> None:
    assert set(COMMITTED) == set(BY_NAME)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.workflow_id)
async def test_the_code_commands_what_was_committed(history: WorkflowHistory) -> None:
    """A change on purpose is committed with `python -m tests.replay.fingerprint`."""
    assert await commands_of(history) == COMMITTED[history.workflow_id]


async def test_two_activities_that_changed_places_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, verifier = signatures.RUN_AGENT, signatures.RUN_VERIFIER
    monkeypatch.setattr(signatures, "RUN_AGENT", verifier)
    monkeypatch.setattr(signatures, "RUN_VERIFIER", agent)
    with pytest.raises(Exception, match="TMPRL1100"):
        await commands_of(BY_NAME["trial_scored"])


@pytest.mark.parametrize(
    ("name", "changed", "story"),
    [
        ("CLOSE", Limits(options.CLOSE.start_to_close, timedelta(seconds=16)), "trial_scored"),
        ("RECORD", Limits(timedelta(seconds=31)), "trial_scored"),
        ("WAIT_FOR_CAPACITY", Pace(6, 60), "trial_waited_for_capacity"),
        ("RECONCILE_AFTER", timedelta(seconds=61), "job_finished"),
    ],
)
async def test_a_changed_timeout_or_wait_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, changed: object, story: str
) -> None:
    monkeypatch.setattr(options, name, changed)
    assert await commands_of(BY_NAME[story]) != COMMITTED[story]
