"""Regrades over the wire, with rows as separate verifiers leave them."""

from __future__ import annotations

from typing import Any

import pytest
from evolve import EvolveAPIError

from store import record
from store.verifier_inputs import MEMBER
from tests.api.conftest import Api
from tests.api.seeding import add_dataset, settle_trial, start_trial

BODY = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle", "model_name": None}]}


async def finished(api: Api, rewards: list[float | None]) -> tuple[str, list[str]]:
    """A job whose verifiers were separate: all but gamma's, which shared the agent's box."""
    pool = await api.db.pool()
    version_id = await add_dataset(api.db, api.caller)
    await declare_separate(api, version_id)
    job = await api.published().jobs.start(**BODY)
    await record.start_job(api.db, job.id)
    rows = await pool.fetch("SELECT * FROM trials WHERE job_id = $1 ORDER BY index", job.id)
    for row, reward in zip(rows, rewards, strict=True):
        await start_trial(api.db, row)
        is_shared = row["task_name"] == "gamma"
        kept: dict[str, Any] = {} if is_shared else {MEMBER: {"attempt_number": 1, "artifacts_key": "k"}}
        mode = "shared" if is_shared else "separate"
        await settle_trial(api.db, row, reward, verifier_environment_mode=mode, **kept)
    await record.finish_job(api.db, job.id)
    return job.id, [row["id"] for row in rows]


async def declare_separate(api: Api, version_id: str) -> None:
    pool = await api.db.pool()
    task = {"verifier_mode": "separate", "steps": [], "verifier_env": {}}
    await pool.execute("UPDATE dataset_tasks SET task = $2 WHERE version_id = $1", version_id, task)


async def refused(call: Any) -> EvolveAPIError:
    with pytest.raises(EvolveAPIError) as caught:
        await call
    return caught.value


async def test_the_published_client_regrades_a_job_and_a_trial(api: Api):
    job_id, ids = await finished(api, [1.0, None, 1.0])
    client = api.published()
    job = await client.jobs.regrade(job_id)
    assert (job.status, job.is_regrade, job.n_total_trials) == ("QUEUED", True, 2)
    assert [(s.action, s.type, s.job_id) for s in job.source_jobs] == [("regrade", "hub", job_id)]
    assert (job.analyze, job.visibility, job.system_log, job.worst_case_spend_usd) == (
        None,
        "PRIVATE",
        False,
        0,
    )
    narrowed = await client.jobs.regrade(job_id, statuses=["SCORING_ERROR"], task_name="beta")
    [trial] = [trial async for trial in client.jobs.trials(narrowed.id)]
    assert trial.task_name == "beta"
    one = await client.trials.regrade(ids[0])
    assert (one.n_total_trials, one.is_regrade) == (1, True)


async def test_what_cannot_be_regraded_is_refused_with_the_reason(api: Api):
    job_id, ids = await finished(api, [1.0, None, 1.0])
    client, stranger = api.published(), api.published(api.stranger_key)
    shared = await refused(client.trials.regrade(ids[2]))
    assert (shared.code, shared.status) == ("regrade_source_ineligible", 409)
    assert shared.details == {"reason": "its verifier shares the agent's box"}
    none = await refused(client.jobs.regrade(job_id, task_name="gamma"))
    assert (none.code, none.status) == ("no_regradable_trials", 409)
    assert (await refused(client.jobs.regrade(job_id, statuses=["DONE"]))).code == "invalid_status"
    assert (await refused(stranger.jobs.regrade(job_id))).code == "job_not_found"
    assert (await refused(stranger.trials.regrade(ids[0]))).code == "trial_not_found"
    live = await client.jobs.retry(job_id)
    assert (await refused(client.jobs.regrade(live.id))).code == "job_not_terminal"


async def test_a_regrade_is_kept_has_no_folder_and_no_agent_to_run_again(api: Api):
    job_id, ids = await finished(api, [1.0, None, 1.0])
    client, pool = api.published(), await api.db.pool()
    job = await client.trials.regrade(ids[0])
    live = await refused(client.jobs.delete(job_id))
    assert (live.code, live.details) == ("job_not_terminal", {"regrade_job_ids": [job.id]})
    [row] = await pool.fetch("SELECT * FROM trials WHERE job_id = $1", job.id)
    await record.start_job(api.db, job.id)
    await settle_trial(api.db, row, 0.0)
    await record.finish_job(api.db, job.id)
    folder = await api.http.get(f"/api/trials/{row['id']}/download")
    assert (folder.status_code, folder.json()["error"]["code"]) == (422, "feature_unsupported")
    assert folder.json()["error"]["details"] == {"source_trial_id": ids[0]}
    assert (await refused(client.jobs.retry(job.id))).code == "feature_unsupported"
    assert (await refused(client.trials.regrade(row["id"]))).code == "regrade_source_ineligible"
    assert (await refused(client.jobs.delete(job.id))).code == "job_not_found"
    assert (await client.jobs.delete(job_id)).trials_deleted == 3
    assert (await client.jobs.get(job.id)).source_jobs[0].job_id == job_id


async def test_changed_tests_are_named_on_the_job_and_its_trials(api: Api):
    job_id, _ = await finished(api, [1.0, None, 1.0])
    version_id = await add_dataset(api.db, api.caller, "other", version="7", tasks=("alpha", "delta"))
    await declare_separate(api, version_id)

    async def regrade(**tests: str) -> Any:
        body = {"with_tests": tests}
        return (await api.http.post(f"/api/jobs/{job_id}/regrade", json=body)).json()

    job = await regrade(name="other", version="7")
    assert job["x_with_tests"] == {"name": "other", "version": "7"}
    assert job["datasets"] == [{"name": "demo", "version": "1.0"}]
    [trial] = (await api.get(f"/api/jobs/{job['id']}/trials"))["items"]
    assert (trial["task_name"], trial["source"]) == ("alpha", "demo")
    assert trial["x_with_tests"] == (await api.get(f"/api/trials/{trial['id']}"))["x_with_tests"]
    assert trial["x_with_tests"] == {"name": "other", "version": "7"}
    pool = await api.db.pool()
    stored = await pool.fetchval("SELECT version_id FROM trials WHERE id = $1", trial["id"])
    assert stored == version_id
    assert (await regrade(name="other"))["x_with_tests"]["version"] == "7"
    unknown = (await regrade(name="other", version="8"))["error"]
    assert (unknown["code"], unknown["param"]) == ("dataset_version_not_found", "with_tests.version")
    in_use = await api.http.delete("/api/datasets/other")
    assert in_use.json()["error"]["code"] == "dataset_in_use"
