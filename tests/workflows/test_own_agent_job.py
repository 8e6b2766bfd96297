"""A registered agent in a job: built, run and scored in real boxes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest_asyncio

from activities.sandboxes.local import LocalProvider
from domain.agents import Registration
from domain.derivation import ResumeRequest
from store.accounts import caller_of_owner
from store.agents import StoredSource, write_agent
from store.database import Database
from store.derived import resume_job
from tests.inprocess import Platform, inprocess_platform
from workflows import names

INSTALL = b"""mkdir -p "$PREFIX/bin"
printf '#!/bin/sh\\ncat > out.txt\\necho "$EVOLVE_MODEL" >> out.txt\\n' > "$PREFIX/bin/acme"
chmod 755 "$PREFIX/bin/acme"
"""
TEST = """#!/bin/sh
printf 'Say hello.\\nscripted/x\\n' | cmp - /app/out.txt && echo 1 > /logs/verifier/reward.txt
"""


@pytest_asyncio.fixture
async def platform(db: Database, temporal: str, tmp_path: Path) -> AsyncIterator[Platform]:
    state = tmp_path / "state"
    (state / "gw").mkdir(parents=True)
    provider = LocalProvider(state, state / "gw" / "gateway.sock", sys.executable)
    async with inprocess_platform(db, temporal, tmp_path, provider) as running:
        yield running


async def run_acme(platform: Platform, install: bytes, **changes: Any) -> dict[str, Any]:
    """A job of two attempts of an agent that is built by `install`; its result."""
    files = {
        "alpha/task.toml": 'version = "1.0"\n[environment]\nnetwork_mode = "no-network"\n',
        "alpha/instruction.md": "Say hello.\n",
        "alpha/environment/Dockerfile": "FROM any\nWORKDIR /app\n",
        "alpha/tests/test.sh": TEST,
    }
    assert await platform.publish("demo", files) == "COMPLETED"
    caller = await caller_of_owner(platform.db, None)
    await platform.blobs.put("agent-sources/s", install)
    source = StoredSource("install_script", "agent-sources/s", "0" * 64, len(install))
    registration = Registration("acme-cli", "acme", {}, None)
    await write_agent(platform.db, caller, registration, source, is_new=True)
    body = {
        "datasets": [{"name": "demo"}],
        "agents": [{"name": "acme-cli", "model_name": "scripted/x"}],
        "n_attempts": 2,
        **changes,
    }
    handle = await platform.client.start_workflow(
        names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
    )
    end: dict[str, Any] = await asyncio.wait_for(handle.result(), 120)
    return end


async def test_a_registered_agent_is_built_run_and_scored(platform: Platform) -> None:
    end = await run_acme(platform, INSTALL)
    rows = await platform.rows(
        "SELECT status, reward, result -> 'harness_bundle_cache_hit' AS hit FROM trials"
    )
    assert (end["by_status"]["SCORED"], end["mean_reward"]) == (2, 1.0), rows
    assert sorted(bool(row["hit"]) for row in rows) == [False, True]


async def test_an_agent_that_cannot_be_built_is_built_once_not_retried_and_resumed_by_its_name(
    platform: Platform,
) -> None:
    retry = {"max_retries": 3, "min_wait_sec": 0.01}
    end = await run_acme(platform, b"date +%s.%N; exit 7", retry=retry)
    assert end["by_status"]["INFRASTRUCTURE_ERROR"] == 2
    rows = await platform.rows(
        "SELECT attempt_number, result #>> '{exception_info,exception_message}' AS told FROM trials"
    )
    assert [row["attempt_number"] for row in rows] == [1, 1]
    assert len({row["told"] for row in rows}) == 1
    assert "exit code 7" in str(rows[0]["told"])
    caller = await caller_of_owner(platform.db, None)
    [job] = await platform.rows("SELECT id FROM jobs")
    by_name = ResumeRequest(filter_error_types=["AgentSetupError"])
    resumed = await resume_job(platform.db, caller, str(job["id"]), by_name, None)
    trials = await platform.rows(f"SELECT source_trial_id FROM trials WHERE job_id = '{resumed.job_id}'")
    assert len(trials) == 2
