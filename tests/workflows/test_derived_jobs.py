"""Derived jobs from request to result, on real Temporal and Postgres."""

from __future__ import annotations

import asyncio
from typing import Any

from domain.derivation import ResumeRequest, RetryRequest
from store.accounts import caller_of_owner
from store.derived import resume_job, retry_job
from store.job_reads import read_job
from tests.factories import task_files
from tests.finished_jobs import accept
from tests.inprocess import Platform
from workflows import names

LOST, SOLVED, UNSOLVED = task_files("a"), task_files("b"), task_files("c", solve="")


async def run_job(platform: Platform, job_id: str) -> dict[str, Any]:
    """Run an accepted job to its end; returns its body."""
    await platform.client.execute_workflow(
        names.JOB_WORKFLOW, {"job_id": job_id}, id=names.job_workflow_id(job_id), task_queue=platform.queue
    )
    return await read_job(platform.db, await caller_of_owner(platform.db, None), job_id)


async def run_with_one_lost(platform: Platform) -> dict[str, Any]:
    """A job whose three trials end with an infrastructure error, 1 and 0."""
    await platform.publish("demo", {**LOST, **SOLVED, **UNSOLVED})
    platform.provider.faults.plan("agent", "death")
    job_id = await accept(
        platform.db, sandbox_provider="local", n_concurrent_trials=1, retry={"max_retries": 0}
    )
    job = await asyncio.wait_for(run_job(platform, job_id), 240)
    ends = await platform.rows("SELECT status, reward FROM trials ORDER BY index")
    assert [(end["status"], end["reward"]) for end in ends] == [
        ("INFRASTRUCTURE_ERROR", None), ("SCORED", 1.0), ("SCORED", 0.0),
    ]  # fmt: skip
    return job


def sums(job: dict[str, Any]) -> dict[str, float]:
    """What a job's statistics count, as far as two jobs can be added."""
    stats = job["stats"]
    names_of_sums = ("n_completed_trials", "n_errored_trials", "n_retries", "cost_usd", "n_input_tokens")
    return {name: stats[name] for name in names_of_sums} | job["trials"]["byStatus"]


async def test_a_resume_makes_exactly_one_trial_and_totals_add_up(platform: Platform) -> None:
    source = await run_with_one_lost(platform)
    caller = await caller_of_owner(platform.db, None)
    accepted = await resume_job(platform.db, caller, source["id"], ResumeRequest(), None)
    derived = await asyncio.wait_for(run_job(platform, accepted.job_id), 240)
    assert (derived["status"], derived["n_total_trials"], derived["trials"]["total"]) == ("COMPLETED", 1, 1)
    assert derived["stats"]["evals"]["oracle__demo"]["metrics"] == [{"mean": 1.0}]
    assert await read_job(platform.db, caller, source["id"]) == source
    both = {name: value + sums(derived)[name] for name, value in sums(source).items()}
    rows = await platform.rows("SELECT status, count(*) AS n FROM trials GROUP BY status")
    assert {str(row["status"]): row["n"] for row in rows} == {"SCORED": 3, "INFRASTRUCTURE_ERROR": 1}
    assert (both["SCORED"], both["INFRASTRUCTURE_ERROR"], both["n_completed_trials"]) == (3, 1, 4)
    assert (both["n_errored_trials"], both["n_retries"], both["cost_usd"]) == (1, 0, 0.0)
    [resumed] = await platform.rows("SELECT * FROM trials WHERE job_id = $1", derived["id"])
    [lost] = await platform.rows("SELECT * FROM trials WHERE status = 'INFRASTRUCTURE_ERROR'")
    assert (resumed["source_trial_id"], resumed["task_name"], resumed["reward"]) == (lost["id"], "a", 1.0)
    # The agent ran once for each trial: what was scored was not run again.
    assert platform.provider.executions().count("agent") == 4


async def test_trials_of_a_retry_are_chosen_one_by_one(platform: Platform) -> None:
    source = await run_with_one_lost(platform)
    caller = await caller_of_owner(platform.db, None)
    first, *_, last = await platform.rows("SELECT id FROM trials ORDER BY index")
    named = RetryRequest(trial_ids=[str(last["id"]), str(first["id"])])
    accepted = await retry_job(platform.db, caller, source["id"], named, None)
    derived = await asyncio.wait_for(run_job(platform, accepted.job_id), 240)
    trials = await platform.rows(
        "SELECT task_name, attempt, reward FROM trials WHERE job_id = $1 ORDER BY index", derived["id"]
    )
    assert [(trial["task_name"], trial["reward"]) for trial in trials] == [("a", 1.0), ("c", 0.0)]
    assert derived["stats"]["evals"]["oracle__demo"]["metrics"] == [{"mean": 0.5}]
    assert derived["counts"] == {"agents": 1, "tasks": 2}
