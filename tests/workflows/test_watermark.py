"""While a disk is nearly full no trial starts; what waits starts by itself once there is room."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest

from activities.disk import GB, low_disk
from tests.api.conditions import until
from tests.factories import task_files
from tests.inprocess import Platform
from workflows import names

BODY = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]}
WAITS = "SELECT result -> 'x_capacity_wait' ->> 'waiting_for' LIKE 'free disk on %' FROM trials"


def disk_with(free_gb: float) -> Callable[[Path], SimpleNamespace]:
    return lambda path: SimpleNamespace(free=round(free_gb * GB))


async def test_a_trial_waits_for_disk_and_says_so_until_there_is(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    await platform.publish("demo", task_files("alpha"))
    with monkeypatch.context() as full:
        full.setattr("activities.disk.shutil.disk_usage", disk_with(0.5))
        await until(platform.db, "SELECT providers -> 'local' ->> 'paused' IS NOT NULL FROM hosts")
        job = await platform.client.start_workflow(
            names.JOB_WORKFLOW, BODY, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
        )
        await until(platform.db, WAITS)
        [trial] = await platform.rows("SELECT status, result -> 'x_capacity_wait' AS wait FROM trials")
        assert trial["status"] == "QUEUED"
        assert "0.5 GB free" in str(trial["wait"])
    end = await job.result()
    assert end["by_status"]["SCORED"] == 1


def test_a_folder_that_is_not_there_yet_counts_for_where_it_would_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("activities.disk.shutil.disk_usage", disk_with(3))
    assert low_disk([tmp_path / "state" / "docker"], 2) is None
    told = low_disk([tmp_path / "state" / "docker"], 4)
    assert told == f"3.0 GB free at {tmp_path}, 4 GB wanted"
