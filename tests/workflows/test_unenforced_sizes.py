"""A size that binds nobody on a host is told on the trial that ran there."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from activities import trial_context
from domain.providers import ProviderCapabilities, local_capabilities
from domain.support import unenforced_sizes
from domain.tasks import Task
from tests.factories import TASK_TOML, task_files
from tests.inprocess import Platform
from workflows import names

NOTHING_ENFORCED = local_capabilities(is_root=False, why_not_public=None, enforced=frozenset())


def _on_a_bare_host(task: Task, _provider: ProviderCapabilities) -> list[str]:
    return unenforced_sizes(task, NOTHING_ENFORCED)


async def test_a_trial_says_which_of_its_sizes_bound_nobody(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_context, "unenforced_sizes", _on_a_bare_host)
    files = task_files("plain") | task_files("sized", toml=f"{TASK_TOML}storage_mb = 64\n")
    await platform.publish("demo", files)
    body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]}
    await asyncio.wait_for(
        platform.client.execute_workflow(
            names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
        ),
        60,
    )
    rows = await platform.rows("SELECT task_name, status, result FROM trials ORDER BY task_name")
    told = {row["task_name"]: (row["status"], row["result"].get("x_unenforced")) for row in rows}
    assert told == {"plain": ("SCORED", None), "sized": ("SCORED", ["storage_mb"])}
