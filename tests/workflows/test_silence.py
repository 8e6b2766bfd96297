"""An agent that writes nothing is shown as silent, and left alone."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from activities.silence import watching_silence
from cli.cells import live_phase
from cli.trials import trial_facts
from domain.vocabulary import AttemptPhase
from store.accounts import caller_of_owner
from store.database import Database, now
from store.fences import Fence
from store.record import enter_phase
from store.silence import silent_since
from store.trial_reads import read_trial
from tests.factories import task_files
from tests.finished_jobs import accept, publish, trial_ids
from tests.inprocess import inprocess_platform
from tests.waiting import until
from workflows import names


async def test_an_agent_without_output_is_shown_as_silent_until_it_ends(
    db: Database, temporal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOLVE_SILENT_AFTER_SEC", "0.4")
    async with inprocess_platform(db, temporal, tmp_path) as platform:
        await platform.publish("demo", task_files("alpha"))
        platform.provider.barriers.hold("agent")
        body = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]}
        handle = await platform.client.start_workflow(
            names.JOB_WORKFLOW, body, id=f"my-job-{uuid4().hex[:6]}", task_queue=platform.queue
        )

        async def shown() -> dict[str, Any]:
            [row] = await platform.rows("SELECT id FROM trials")
            return await read_trial(db, await caller_of_owner(db, None), str(row["id"]))

        async def is_silent() -> bool:
            rows = await platform.rows("SELECT FROM trials WHERE result ->> 'x_silent_since' IS NOT NULL")
            return bool(rows)

        await asyncio.wait_for(until(is_silent), 60)
        trial = await shown()
        assert (trial["status"], trial["attempt_phase"]) == ("RUNNING", "agent")
        assert ("no output since", trial["x_silent_since"]) in trial_facts(trial)
        assert live_phase(trial).startswith("agent, silent 0:")
        platform.provider.barriers.release("agent")
        end = await asyncio.wait_for(handle.result(), 60)
        assert end["by_status"]["SCORED"] == 1
        assert "x_silent_since" not in await shown()


async def test_output_ends_the_silence_and_a_new_follower_knows_of_it(db: Database) -> None:
    await publish(db, "alpha")
    job_id = await accept(db)
    [trial_id] = await trial_ids(db, job_id)
    fence = Fence(job_id, trial_id, 1, AttemptPhase.AGENT, 1)
    await enter_phase(db, fence)

    async def says(is_silent: bool) -> None:
        async def so() -> bool:
            return (await silent_since(db, trial_id) is not None) is is_silent

        await asyncio.wait_for(until(so), 20)

    async def dies() -> None:
        async with watching_silence(db, fence, 0.2):
            await says(True)
            raise ConnectionError

    began = now()
    with pytest.raises(ConnectionError):
        await dies()
    since = await silent_since(db, trial_id)
    assert since is not None
    assert began - timedelta(seconds=1) < since < now()
    async with watching_silence(db, fence, 3600):
        assert await silent_since(db, trial_id) == since
    await says(False)
    async with watching_silence(db, fence, 0.2) as silence:
        await says(True)
        silence.heard()
        await says(False)
        await says(True)
        later: datetime | None = await silent_since(db, trial_id)
        assert later is not None
        assert later > since
