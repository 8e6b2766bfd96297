"""Record the histories that `test_replay.py` replays: `python -m tests.replay.record`.

Run it when a workflow changed on purpose, and keep the older file of a release whose runs may be open. With
a part of names (`python -m tests.replay.record regrade`) only the histories called so are written.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from activities.signatures import ProviderReport, ReapOrder
from domain.breaker import BreakerState
from domain.regrading import RegradeRequest, TrialRegradeRequest
from store.accounts import caller_of_owner
from store.database import Database
from store.migrations import upgrade
from store.regrades import regrade_job, regrade_trial
from tests.factories import TASK_TOML, task_files
from tests.inprocess import Platform, inprocess_platform
from tests.postgres import running_postgres
from tests.replay.fingerprint import FINGERPRINTS, HISTORIES, fingerprints
from tests.temporal import running_temporal
from tests.waiting import eventually, until
from workflows import names
from workflows.inputs import ProviderInput
from workflows.provider import ProviderWorkflow

BODY: dict[str, Any] = {
    "datasets": [{"name": "demo"}],
    "agents": [{"name": "oracle"}, {"name": "nop"}],
    "n_attempts": 2,
    "n_concurrent_trials": 2,
}


async def keep(platform: Platform, workflow_id: str, name: str) -> None:
    if not any(part in name for part in sys.argv[1:] or [""]):
        return
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


async def start_alone(platform: Platform, name: str, *, min_wait_sec: float = 0.01) -> Any:
    """A job of one trial."""
    body = {**BODY, "datasets": [{"name": "demo", "n_tasks": 1}], "agents": [{"name": "oracle"}]}
    retry = {"max_retries": 2, "min_wait_sec": min_wait_sec}
    return await platform.client.start_workflow(
        names.JOB_WORKFLOW,
        {**body, "n_attempts": 1, "retry": retry},
        id=name,
        task_queue=platform.queue,
    )


async def run_alone(platform: Platform, name: str) -> str:
    """A job of one trial to its end; returns the trial's workflow id."""
    await (await start_alone(platform, name)).result()
    return await trial_of(platform, name)


async def trial_of(platform: Platform, name: str) -> str:
    """The workflow of a job's first trial."""
    query = "SELECT t.id FROM trials t JOIN jobs j ON j.id = t.job_id WHERE workflow_id = $1 ORDER BY index"
    trial, *_ = await platform.rows(query, name)
    return names.trial_workflow_id(str(trial["id"]))


async def record_retries(platform: Platform) -> None:
    faults = platform.provider.faults
    faults.plan("agent", "death")
    await keep(platform, await run_alone(platform, "retried"), "trial_retried")
    faults.plan("agent", "death", "death")
    await keep(platform, await run_alone(platform, "broken"), "trial_circuit_broken")
    faults.plan("create", "429")
    await keep(platform, await run_alone(platform, "waited"), "trial_waited_for_capacity")


async def record_cancelled_in_back_off(platform: Platform) -> None:
    platform.provider.faults.plan("agent", "death")
    job = await start_alone(platform, "backs-off", min_wait_sec=60)
    query = "SELECT FROM trials t JOIN jobs j ON j.id = t.job_id WHERE n_retries = 1 AND workflow_id = $1"

    async def is_retired() -> bool:
        return bool(await platform.rows(query, "backs-off"))

    await until(is_retired)
    await job.signal(names.SIGNAL_CANCEL)
    await job.result()
    await keep(platform, await trial_of(platform, "backs-off"), "trial_cancelled_in_back_off")


async def record_provider(platform: Platform) -> None:
    """An operator's pause; and failures of three tasks, of which the third opens the breaker."""
    held = await platform.client.start_workflow(
        ProviderWorkflow.run, ProviderInput(provider="held"), id="held", task_queue=platform.queue
    )
    await held.execute_update(names.UPDATE_SET_BREAKER, "open")
    await held.execute_update(names.UPDATE_SET_BREAKER, "close")
    await held.result()
    await keep(platform, "held", "provider_held")
    failed = await platform.client.start_workflow(
        ProviderWorkflow.run, ProviderInput(provider="failed"), id="failed", task_queue=platform.queue
    )
    for name in ("a", "b", "c"):
        report = ProviderReport(trial_id=name, task=name, at=datetime.now(UTC), problem="500")
        await failed.signal(names.SIGNAL_CREATE_ENDED, report)

    async def is_probing() -> bool:
        return (await failed.query(ProviderWorkflow.breaker)).state is BreakerState.HALF_OPEN

    await until(is_probing)
    report = ProviderReport(trial_id="a", task="a", at=datetime.now(UTC))
    await failed.signal(names.SIGNAL_CREATE_ENDED, report)
    await failed.result()
    await keep(platform, "failed", "provider_failed")


async def record_steps(platform: Platform) -> None:
    """The trial of a task of two steps, the second prepared by a `setup.sh`."""
    steps = '[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
    task = task_files("gamma", toml=TASK_TOML + steps)
    for step in ("one", "two"):
        task[f"gamma/steps/{step}/instruction.md"] = f"Step {step}.\n"
    task["gamma/steps/two/workdir/setup.sh"] = "make /app/ready\n"
    await platform.publish("stepped", task)
    body = {**BODY, "datasets": [{"name": "stepped"}], "agents": [{"name": "oracle"}], "n_attempts": 1}
    await platform.client.execute_workflow(names.JOB_WORKFLOW, body, id="stepped", task_queue=platform.queue)
    await keep(platform, await trial_of(platform, "stepped"), "trial_multi_step")


async def record_regrades(platform: Platform) -> None:
    """Of a job, and of one trial by itself whose verifier's box dies once."""
    separate = 'artifacts = ["/app/solved"]\n[verifier]\nenvironment_mode = "separate"\n'
    await platform.publish_id("separate", task_files("delta", toml=separate))
    retry = {"max_retries": 1, "min_wait_sec": 0.01}
    body = {**BODY, "datasets": [{"name": "separate"}], "agents": [{"name": "oracle"}], "retry": retry}
    end = await platform.client.execute_workflow(
        names.JOB_WORKFLOW, body, id="judged", task_queue=platform.queue
    )
    caller = await caller_of_owner(platform.db, None)
    of_job = await regrade_job(platform.db, caller, end["job_id"], RegradeRequest())
    await run_accepted(platform, of_job.job_id)
    await keep(platform, names.job_workflow_id(of_job.job_id), "job_regrade")
    await keep(platform, await trial_of(platform, names.job_workflow_id(of_job.job_id)), "trial_regrade")
    [source] = await platform.rows("SELECT id FROM trials WHERE job_id = $1 AND index = 0", end["job_id"])
    of_trial = await regrade_trial(platform.db, caller, str(source["id"]), TrialRegradeRequest())
    platform.provider.faults.plan("verifier", "death")
    await run_accepted(platform, of_trial.job_id)
    await keep(platform, names.job_workflow_id(of_trial.job_id), "job_regrade_of_trial")
    retried = await trial_of(platform, names.job_workflow_id(of_trial.job_id))
    await keep(platform, retried, "trial_regrade_retried")


async def run_accepted(platform: Platform, job_id: str) -> None:
    """A job that is in the store already, to its end."""
    await platform.client.execute_workflow(
        names.JOB_WORKFLOW, {"job_id": job_id}, id=names.job_workflow_id(job_id), task_queue=platform.queue
    )


async def record_archive(platform: Platform) -> None:
    [job] = await platform.rows("SELECT id FROM jobs WHERE workflow_id = 'finished'")
    await platform.client.execute_workflow(
        names.ARCHIVE_WORKFLOW,
        {"kind": "job", "subject_id": job["id"]},
        id="archive",
        task_queue=platform.queue,
    )
    await keep(platform, "archive", "archive")


async def record_reaper(platform: Platform) -> None:
    """One look around; it cancels what a job left whose workflow an operator ended."""
    barriers = platform.provider.barriers
    barriers.hold("agent")
    barriers.forget("agent")
    job = await start_alone(platform, "left")
    await eventually(lambda: barriers.reached("agent"))
    await job.terminate()
    await platform.rows("UPDATE jobs SET updated_at = updated_at - interval '1 hour'")
    await platform.client.execute_workflow(
        names.REAPER_WORKFLOW, ReapOrder(), id="reaper-recorded", task_queue=platform.queue
    )
    await keep(platform, "reaper-recorded", "reaper")
    await platform.client.get_workflow_handle("left").result()
    await keep(platform, "left", "job_taken_up_to_cancel")
    barriers.release("agent")


async def record_host_lost(platform: Platform) -> None:
    """A trial whose host died when it was placed, and which runs again on one that lives."""
    await platform.rows(
        "INSERT INTO hosts SELECT 'dead', providers, default_provider, '', 'host-dead', 'host-dead-follow',"
        " cpus, 2 * memory_mb, code_version, now() + interval '1 hour' FROM hosts"
    )
    job = await start_alone(platform, "host-lost")

    async def is_placed() -> bool:
        return bool(await platform.rows("SELECT FROM box_leases WHERE host_id = 'dead'"))

    await until(is_placed)
    await platform.rows("UPDATE hosts SET lease_expires_at = now() - interval '1 hour' WHERE id = 'dead'")
    await platform.client.execute_workflow(
        names.REAPER_WORKFLOW, ReapOrder(), id="reaper-of-lost", task_queue=platform.queue
    )
    await job.result()
    await keep(platform, await trial_of(platform, "host-lost"), "trial_host_lost")
    await platform.rows("DELETE FROM hosts WHERE id = 'dead'")


async def is_host_known(platform: Platform) -> bool:
    """What is built before goes to no host's queue."""
    return bool(await platform.rows("SELECT FROM hosts"))


async def record(url: str, temporal: str, root: Path) -> None:
    await upgrade(url)
    db = Database(url)
    async with inprocess_platform(db, temporal, root) as platform:
        await until(partial(is_host_known, platform))
        import_id = await platform.publish_id("demo", {**task_files("alpha"), **task_files("beta")})
        await keep(platform, names.dataset_import_workflow_id(import_id), "dataset_import")
        await record_finished(platform)
        await record_retries(platform)
        await record_cancelled_in_back_off(platform)
        await record_provider(platform)
        await record_steps(platform)
        await record_regrades(platform)
        await record_archive(platform)
        await record_reaper(platform)
        await record_host_lost(platform)
        await record_cancelled(platform)
    await db.close()


if __name__ == "__main__":
    HISTORIES.mkdir(exist_ok=True)
    with running_postgres() as server, running_temporal() as address, tempfile.TemporaryDirectory() as root:
        asyncio.run(record(server.url("postgres"), address, Path(root)))
    # The code that recorded them; in a process of its own it would be the same.
    FINGERPRINTS.write_text(json.dumps(asyncio.run(fingerprints()), indent=1) + "\n")
