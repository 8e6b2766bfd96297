"""Record the histories that `test_replay.py` replays: `python -m tests.replay.record`.

Run it when a workflow changed on purpose, and keep the older file of a release whose runs may be open.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from store.database import Database
from store.migrations import upgrade
from tests.factories import task_files
from tests.inprocess import Platform, inprocess_platform
from tests.postgres import running_postgres
from tests.temporal import running_temporal
from tests.waiting import eventually
from workflows import names

HISTORIES = Path(__file__).parent / "histories"
BODY: dict[str, Any] = {
    "datasets": [{"name": "demo"}],
    "agents": [{"name": "oracle"}, {"name": "nop"}],
    "n_attempts": 2,
    "n_concurrent_trials": 2,
}


async def keep(platform: Platform, workflow_id: str, name: str) -> None:
    history = await platform.client.get_workflow_handle(workflow_id).fetch_history()
    (HISTORIES / f"{name}.json").write_text(history.to_json())


async def record_finished(platform: Platform) -> None:
    job = await platform.client.start_workflow(
        names.JOB_WORKFLOW, BODY, id="finished", task_queue=platform.queue
    )
    end = await job.result()
    await keep(platform, "finished", "job_finished")
    [trial] = await platform.rows("SELECT id FROM trials WHERE job_id = $1 AND index = 0", end["job_id"])
    await keep(platform, names.trial_workflow_id(str(trial["id"])), "trial_scored")


async def record_cancelled(platform: Platform) -> None:
    platform.provider.barriers.hold("agent")
    job = await platform.client.start_workflow(
        names.JOB_WORKFLOW, BODY, id="cancelled", task_queue=platform.queue
    )
    await eventually(lambda: platform.provider.barriers.reached("agent"))
    await job.signal(names.SIGNAL_CANCEL)
    end = await job.result()
    await keep(platform, "cancelled", "job_cancelled")
    [trial] = await platform.rows("SELECT id FROM trials WHERE job_id = $1 AND index = 0", end["job_id"])
    await keep(platform, names.trial_workflow_id(str(trial["id"])), "trial_cancelled")


async def run_alone(platform: Platform, name: str) -> str:
    """A job of one trial to its end; returns the trial's workflow id."""
    body = {**BODY, "datasets": [{"name": "demo", "n_tasks": 1}], "agents": [{"name": "oracle"}]}
    retry = {"max_retries": 2, "min_wait_sec": 0.01}
    await platform.client.execute_workflow(
        names.JOB_WORKFLOW,
        {**body, "n_attempts": 1, "retry": retry},
        id=name,
        task_queue=platform.queue,
    )
    [trial] = await platform.rows(
        "SELECT t.id FROM trials t JOIN jobs j ON j.id = t.job_id WHERE j.workflow_id = $1", name
    )
    return names.trial_workflow_id(str(trial["id"]))


async def record_retries(platform: Platform) -> None:
    faults = platform.provider.faults
    faults.plan("agent", "death")
    await keep(platform, await run_alone(platform, "retried"), "trial_retried")
    faults.plan("agent", "death", "death")
    await keep(platform, await run_alone(platform, "broken"), "trial_circuit_broken")
    faults.plan("create", "429")
    await keep(platform, await run_alone(platform, "waited"), "trial_waited_for_capacity")


async def record(url: str, temporal: str, root: Path) -> None:
    await upgrade(url)
    db = Database(url)
    async with inprocess_platform(db, temporal, root) as platform:
        import_id = await platform.publish_id("demo", {**task_files("alpha"), **task_files("beta")})
        await keep(platform, names.dataset_import_workflow_id(import_id), "dataset_import")
        await record_finished(platform)
        await record_retries(platform)
        await record_cancelled(platform)
    await db.close()


if __name__ == "__main__":
    HISTORIES.mkdir(exist_ok=True)
    with running_postgres() as server, running_temporal() as address, tempfile.TemporaryDirectory() as root:
        asyncio.run(record(server.url("postgres"), address, Path(root)))
