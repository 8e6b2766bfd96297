"""A regrade: fresh verifiers over what a job's separate verifiers judged; no agent runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from domain.errors import ApiError
from domain.regrading import DatasetVersionInput, RegradeRequest, TrialRegradeRequest
from store.accounts import Caller, caller_of_owner
from store.archives import read_archive
from store.job_reads import read_job
from store.job_verbs import delete_job
from store.regrades import regrade_job, regrade_trial
from store.trial_reads import read_trial
from tests.factories import task_files
from tests.finished_jobs import accept
from tests.inprocess import Platform
from tests.waiting import eventually
from tests.workflows.test_archive_workflow import build
from tests.workflows.test_separate_verifier import separate_task
from workflows import names

SHARED = task_files("shared")


async def start_job(platform: Platform, job_id: str) -> Any:
    return await platform.client.start_workflow(
        names.JOB_WORKFLOW, {"job_id": job_id}, id=names.job_workflow_id(job_id), task_queue=platform.queue
    )


async def run_job(platform: Platform, job_id: str) -> dict[str, Any]:
    """Run an accepted job to its end; returns its body."""
    await asyncio.wait_for((await start_job(platform, job_id)).result(), 120)
    return await read_job(platform.db, await owner(platform), job_id)


async def owner(platform: Platform) -> Caller:
    return await caller_of_owner(platform.db, None)


async def source_job(platform: Platform, files: dict[str, str]) -> dict[str, Any]:
    await platform.publish("demo", files)
    job_id = await accept(
        platform.db, sandbox_provider="local", retry={"max_retries": 1, "min_wait_sec": 0.01}
    )
    return await run_job(platform, job_id)


async def trials_of(platform: Platform, job_id: str) -> list[dict[str, Any]]:
    return await platform.rows("SELECT * FROM trials WHERE job_id = $1 ORDER BY index", job_id)


async def test_a_verifier_judges_again_and_no_agent_runs(platform: Platform) -> None:
    source = await source_job(platform, {**separate_task(), **SHARED})
    accepted = await regrade_job(platform.db, await owner(platform), source["id"], RegradeRequest())
    job = await run_job(platform, accepted.job_id)
    assert (job["status"], job["n_total_trials"], job["is_regrade"]) == ("COMPLETED", 1, True)
    assert job["source_jobs"] == [{"action": "regrade", "type": "hub", "job_id": source["id"]}]
    assert (job["worst_case_spend_usd"], job["analyze"], job["system_log"]) == (0.0, None, False)
    assert (job["visibility"], "x_with_tests" in job) == ("PRIVATE", False)
    [trial] = await trials_of(platform, job["id"])
    body = await read_trial(platform.db, await owner(platform), trial["id"])
    assert (body["status"], body["reward"], body["task_name"]) == ("SCORED", 1.0, "alpha")
    assert (body["sandbox_id"], body["agent_result"], body["agent_execution"]) == (None, None, None)
    assert body["verifier_environment_mode"] == "separate"
    assert body["verifier_sandbox_id"]
    assert body["verifier"]["finished_at"]
    executions = platform.provider.executions()
    assert (executions.count("agent"), executions.count("verifier"), executions[-1]) == (2, 3, "verifier")
    files = await platform.rows("SELECT path FROM trial_files WHERE trial_id = $1", trial["id"])
    assert "verifier/test-stdout.txt" in {row["path"] for row in files}
    assert await platform.rows("SELECT FROM box_leases WHERE state <> 'gone'") == []
    assert await read_job(platform.db, await owner(platform), source["id"]) == source
    await build(platform, "job", job["id"])
    assert (await read_archive(platform.db, "job", job["id"]))["state"] == "ready"


async def test_a_box_that_dies_is_retried_as_any(platform: Platform) -> None:
    source = await source_job(platform, separate_task())
    platform.provider.faults.plan("verifier", "death")
    accepted = await regrade_job(platform.db, await owner(platform), source["id"], RegradeRequest())
    await run_job(platform, accepted.job_id)
    [trial] = await trials_of(platform, accepted.job_id)
    assert (trial["status"], trial["reward"], trial["n_retries"]) == ("SCORED", 1.0, 1)
    assert platform.provider.executions().count("agent") == 1


async def test_a_provider_without_capacity_is_waited_for(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workflows import options

    monkeypatch.setattr(options, "WAIT_FOR_CAPACITY", options.Pace(0.01, 0.01))
    source = await source_job(platform, separate_task())
    platform.provider.faults.plan("create", "429", "429")
    accepted = await regrade_job(platform.db, await owner(platform), source["id"], RegradeRequest())
    await run_job(platform, accepted.job_id)
    [trial] = await trials_of(platform, accepted.job_id)
    assert (trial["status"], trial["n_retries"]) == ("SCORED", 0)
    assert await platform.rows("SELECT FROM box_leases WHERE state <> 'gone'") == []


async def test_changed_tests_judge_what_was_recorded(platform: Platform) -> None:
    source = await source_job(platform, {**separate_task(), **SHARED})
    lenient = separate_task(test="reward 0.5\nprint lenient\n")
    await platform.publish("stricter", {**lenient, **SHARED})
    request = RegradeRequest(with_tests=DatasetVersionInput(name="stricter"))
    accepted = await regrade_job(platform.db, await owner(platform), source["id"], request)
    job = await run_job(platform, accepted.job_id)
    assert job["x_with_tests"] == {"name": "stricter", "version": "1"}
    assert job["datasets"] == source["datasets"]
    assert job["stats"]["evals"]["oracle__demo"]["metrics"] == [{"mean": 0.5}]
    [trial] = await trials_of(platform, job["id"])
    body = await read_trial(platform.db, await owner(platform), trial["id"])
    assert (body["reward"], body["source"]) == (0.5, "demo")
    assert body["x_with_tests"] == {"name": "stricter", "version": "1"}


async def test_one_trial_is_refused_with_the_reason(platform: Platform) -> None:
    source = await source_job(platform, {**separate_task(), **SHARED})
    alpha, shared = await trials_of(platform, source["id"])
    caller, again = await owner(platform), TrialRegradeRequest()
    with pytest.raises(ApiError, match="shares the agent's box") as caught:
        await regrade_trial(platform.db, caller, shared["id"], again)
    assert caught.value.code == "regrade_source_ineligible"
    with pytest.raises(ApiError) as caught:
        await regrade_job(platform.db, caller, source["id"], RegradeRequest(task_name="shared"))
    assert caught.value.code == "no_regradable_trials"
    accepted = await regrade_trial(platform.db, caller, alpha["id"], again)
    job = await run_job(platform, accepted.job_id)
    assert job["stats"]["n_completed_trials"] == 1
    [regraded] = await trials_of(platform, job["id"])
    with pytest.raises(ApiError, match="a regrade itself"):
        await regrade_trial(platform.db, caller, regraded["id"], again)


async def test_a_regrade_under_way_keeps_its_source_and_outlives_it_after(platform: Platform) -> None:
    source = await source_job(platform, separate_task())
    caller = await owner(platform)
    platform.provider.barriers.forget("verifier")
    platform.provider.barriers.hold("verifier")
    accepted = await regrade_job(platform.db, caller, source["id"], RegradeRequest())
    handle = await start_job(platform, accepted.job_id)
    await eventually(lambda: platform.provider.barriers.reached("verifier"))
    with pytest.raises(ApiError) as caught:
        await delete_job(platform.db, caller, source["id"])
    assert (caught.value.code, caught.value.details) == (
        "job_not_terminal", {"regrade_job_ids": [accepted.job_id]},
    )  # fmt: skip
    await handle.signal(names.SIGNAL_CANCEL)
    assert (await asyncio.wait_for(handle.result(), 60))["by_status"]["CANCELLED"] == 1
    assert await platform.rows("SELECT FROM box_leases WHERE state <> 'gone'") == []
    deleted = await delete_job(platform.db, caller, source["id"])
    kept = [key for trial_id in deleted.trial_ids for key in await platform.blobs.list(f"trials/{trial_id}/")]
    assert [key for key in kept if "inputs-" in key]
    assert [key for key in kept if "baseline" in key]
    await deleted.delete_blobs(platform.blobs)
    assert not set(kept) & set(await platform.blobs.list("trials/"))
    job = await read_job(platform.db, caller, accepted.job_id)
    assert job["source_jobs"][0]["job_id"] == source["id"]
    with pytest.raises(ApiError) as caught:
        await delete_job(platform.db, caller, accepted.job_id)
    assert caught.value.code == "job_not_found"
