from __future__ import annotations

import asyncio
from typing import Any

import pytest
from evolve import EvolveAPIError, pass_at_k

from store import record
from tests.api.conftest import Api
from tests.api.seeding import add_dataset, run_job, settle_trial, start_trial

BODY = {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}]}


async def create(api: Api, **changes: Any) -> dict[str, Any]:
    answer = await api.http.post("/api/jobs", json={**BODY, **changes})
    assert answer.status_code == 201, answer.text
    return answer.json()


async def test_the_published_client_starts_follows_and_reads_a_job(api: Api):
    await add_dataset(api.db, api.caller)
    jobs = api.published().jobs
    job = await jobs.start(
        datasets=[{"name": "demo"}],
        agents=[{"name": "oracle", "model_name": None}, {"name": "nop", "model_name": None}],
        n_attempts=2,
        job_name="first",
    )
    assert (job.status, job.n_total_trials, job.sandbox_provider) == ("QUEUED", 12, "local")
    assert job.trials.by_status["QUEUED"] == 12
    assert job.worst_case_spend_usd == 0.0
    assert job.org == "personal"

    running = asyncio.create_task(run_job(api.db, job.id, [1.0, 0.0] * 5 + [1.0, None]))
    seen = [event async for event in jobs.watch(job.id)]
    await running
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert [event.type for event in seen[:2]] == ["job.created", "job.running"]
    assert seen[-1].type == "job.completed"
    assert sum(event.type == "trial.settled" for event in seen) == 12

    done = await jobs.get(job.id)
    assert (done.status, done.viewer) == ("COMPLETED", "creator")
    assert done.finished_at
    assert (done.stats["n_completed_trials"], done.stats["n_errored_trials"]) == (12, 1)
    group = done.stats["evals"]["oracle__demo"]
    assert group["metrics"] == [{"mean": 0.5}]
    assert len(group["reward_stats"]["reward"]["1.0"]) == 3
    assert done.stats["evals"]["nop__demo"]["exception_stats"]["ScoringError"]
    assert {g.evals_key: [(p.k, p.value) for p in g.points] for g in pass_at_k(done)} == {
        "oracle__demo": [(2, 1.0)],
        "nop__demo": [(2, 1.0)],
    }


async def test_arms_that_differ_only_in_a_preset_or_a_pin_have_their_own_pass_at_k(api: Api):
    await add_dataset(api.db, api.caller)
    jobs = api.published().jobs
    arms = [{}, {"preset": "no-internet"}, {"preset": "no-internet", "version": "2.1.197"}]
    job = await jobs.start(
        datasets=[{"name": "demo"}],
        agents=[{"name": "claude", "model_name": "opus", **arm} for arm in arms],
        n_attempts=2,
        retry={"max_retries": 0},
    )
    assert [arm.reasoning_effort for arm in job.agents] == ["high"] * 3
    assert job.worst_case_spend_usd == 3 * 2 * 3 * 200.0
    await run_job(api.db, job.id, [0.0, 0.0, 1.0, 0.0, 1.0, 1.0] + [0.0] * 12)
    points = {group.evals_key: group.points[0].value for group in pass_at_k(await jobs.get(job.id))}
    assert points == {
        "claude__opus__high__demo": 0.0,
        "claude__opus__high__no-internet__demo": pytest.approx(1 / 3),
        "claude__opus__high__2.1.197__no-internet__demo": pytest.approx(1 / 3),
    }


async def test_trials_and_tasks_are_paged_and_filtered(api: Api):
    await add_dataset(api.db, api.caller)
    job = await create(api, n_attempts=2)
    await run_job(api.db, job["id"], [1.0, 0.5, None, 0.0, 1.0, 1.0])
    client = api.published()
    trials = [trial async for trial in client.jobs.trials(job["id"], limit=4)]
    assert [(t.task_name, t.attempt, t.reward) for t in trials][:3] == [
        ("alpha", 1, 1.0),
        ("alpha", 2, 0.5),
        ("beta", 1, None),
    ]
    assert len(trials) == 6
    failed = await client.jobs.trials(job["id"], status=["SCORING_ERROR"])
    assert len(failed.items[0].exception_info.exception_message) == 2000
    assert len((await client.trials.get(failed.items[0].id)).exception_info.exception_message) == 5000
    assert (await api.get(f"/api/jobs/{job['id']}/trials", dataset="nowhere"))["items"] == []
    tasks = [task async for task in client.jobs.tasks(job["id"], limit=2)]
    assert [(t.task_name, t.mean_reward) for t in tasks] == [("alpha", 0.75), ("beta", 0.0), ("gamma", 1.0)]
    assert tasks[1].trials.by_status["SCORING_ERROR"] == 1


async def test_jobs_are_listed_newest_first_page_by_page(api: Api):
    await add_dataset(api.db, api.caller)
    ids = [(await create(api, job_name=f"job {number}"))["id"] for number in range(5)]
    client = api.published()
    assert [job.id async for job in client.jobs.list(limit=2)] == ids[::-1]
    assert [job.job_name async for job in client.jobs.list(search="JOB 3")] == ["job 3"]
    assert len((await client.jobs.list(search="demo")).items) == 5
    assert (await client.jobs.list(scope="shared")).items == []
    assert (await client.jobs.list(kind="check")).items == []
    assert (await api.get("/api/jobs", uploaded="true"))["items"] == []


async def test_an_idempotency_key_answers_the_first_job(api: Api):
    await add_dataset(api.db, api.caller)
    jobs = api.published().jobs
    wanted = {"datasets": [{"name": "demo"}], "agents": [{"name": "nop", "model_name": None}]}
    replies = await asyncio.gather(*(jobs.start(**wanted, idempotency_key="k") for _ in range(4)))
    assert len({job.id for job in replies}) == 1
    assert sorted(job.idempotent_replay for job in replies) == [False, True, True, True]
    with pytest.raises(EvolveAPIError) as caught:
        await jobs.start(**wanted, n_attempts=2, idempotency_key="k")
    assert (caught.value.code, caught.value.status) == ("idempotency_key_reused", 409)


async def test_a_refused_create_writes_nothing(api: Api):
    await add_dataset(api.db, api.caller, failed=["broken"])
    for change, code in (
        ({"datasets": [{"name": "nowhere"}]}, "dataset_not_found"),
        ({"datasets": [{"name": "demo", "version": "9"}]}, "dataset_version_not_found"),
        ({"datasets": [{"name": "demo", "task_names": ["broken"]}]}, "task_failed_to_build"),
        ({"org": "someone-else"}, "org_not_found"),
        ({"sandbox_provider": "modal"}, "feature_unsupported"),
        ({"agents": [{"name": "antigravity", "model_name": "gemini-3.8-flash"}]}, "feature_unsupported"),
        ({"agents": [{"name": "claude", "model_name": "gpt-6.1-sol"}]}, "invalid_input"),
        ({"agents": [{"name": "claude", "model_name": "scripted/hello"}]}, "invalid_input"),
    ):
        answer = await api.http.post("/api/jobs", json={**BODY, **change})
        assert answer.json()["error"]["code"] == code
        assert answer.json()["error"]["requestId"] == answer.headers["x-request-id"]
    pool = await api.db.pool()
    assert await pool.fetchval("SELECT count(*) FROM jobs") == 0
    assert await pool.fetchval("SELECT count(*) FROM intents") == 0


async def test_a_partly_built_dataset_says_what_did_not_run(api: Api):
    await add_dataset(api.db, api.caller, failed=["broken"])
    job = await create(api)
    assert job["n_total_trials"] == 3
    assert job["build_exclusions"][0]["failed_task_names"] == ["broken"]


async def test_cancel_answers_at_once_with_temporal_down(api: Api):
    await add_dataset(api.db, api.caller)
    job = await create(api, n_attempts=2)
    await record.start_job(api.db, job["id"])
    pool = await api.db.pool()
    rows = await pool.fetch("SELECT * FROM trials WHERE job_id = $1 ORDER BY index", job["id"])
    await start_trial(api.db, rows[0])
    jobs = api.published().jobs
    cancelled = await jobs.cancel(job["id"])
    assert cancelled.status == "CANCELLING"
    assert (cancelled.trials.by_status["CANCELLED"], cancelled.trials.by_status["RUNNING"]) == (5, 1)
    assert (await jobs.cancel(job["id"])).status == "CANCELLING"
    kinds = [row["kind"] for row in await pool.fetch("SELECT kind FROM intents ORDER BY id")]
    assert kinds == ["job.start", "job.cancel"]
    assert (await api.get("/healthz"))["undelivered_intents"] == 2
    await settle_trial(api.db, rows[0], 1.0)
    await record.finish_job(api.db, job["id"])
    assert (await jobs.get(job["id"])).status == "CANCELLED"
    assert (await jobs.cancel(job["id"])).status == "CANCELLED"


async def test_a_pause_answers_at_once_and_leaves_the_status(api: Api):
    await add_dataset(api.db, api.caller)
    job = await create(api)
    await record.start_job(api.db, job["id"])

    async def say(word: str, key: str | None = None) -> dict[str, Any]:
        headers = api.headers(key)
        return (await api.http.post(f"/api/jobs/{job['id']}/{word}", json={}, headers=headers)).json()

    assert job["paused_at"] is None
    paused = await say("pause")
    assert paused["status"] == "RUNNING"
    assert paused["paused_at"] == (await say("pause"))["paused_at"] is not None
    assert (await api.published().jobs.get(job["id"])).status == "RUNNING"
    assert (await say("pause", api.stranger_key))["error"]["code"] == "job_not_found"
    assert (await say("unpause"))["paused_at"] is None
    assert (await say("pause"))["paused_at"] is not None
    # A cancel ends a pause too, and after it there is nothing to pause.
    assert (await api.published().jobs.cancel(job["id"])).status == "CANCELLING"
    assert (await say("unpause"))["paused_at"] is None
    assert (await say("pause"))["paused_at"] is None
    pool = await api.db.pool()
    rows = await pool.fetch("SELECT kind, payload FROM intents ORDER BY id")
    assert [row["payload"].get("is_paused") for row in rows if row["kind"] == "job.pause"] == [
        True,
        False,
        True,
    ]


async def test_stop_partitions_the_ids(api: Api):
    await add_dataset(api.db, api.caller)
    job = await create(api)
    pool = await api.db.pool()
    rows = await pool.fetch("SELECT * FROM trials WHERE job_id = $1 ORDER BY index", job["id"])
    await settle_trial(api.db, rows[0], 1.0)
    await start_trial(api.db, rows[1])
    ids = [row["id"] for row in rows]
    result = await api.published().trials.stop([ids[0], "nobody", ids[1], ids[1]])
    assert [trial.id for trial in result.stopped] == [ids[1]]
    assert (result.already_terminal, result.not_found) == ([ids[0]], ["nobody"])
    foreign = await api.published(api.stranger_key).trials.stop([ids[1]])
    assert foreign.not_found == [ids[1]]
    payload = await pool.fetchval("SELECT payload FROM intents WHERE kind = 'trial.stop'")
    assert payload == {"indexes": [1]}


async def test_only_a_terminal_job_is_deleted_and_only_by_its_creator(api: Api):
    await add_dataset(api.db, api.caller)
    job = await create(api)
    jobs = api.published().jobs
    with pytest.raises(EvolveAPIError) as caught:
        await jobs.delete(job["id"])
    assert (caught.value.code, caught.value.status) == ("job_not_terminal", 409)
    await run_job(api.db, job["id"], [1.0, 1.0, 1.0])
    with pytest.raises(EvolveAPIError) as caught:
        await api.published(api.stranger_key).jobs.delete(job["id"])
    assert caught.value.code == "job_not_found"
    assert (await jobs.delete(job["id"])).trials_deleted == 3
    with pytest.raises(EvolveAPIError) as caught:
        await jobs.get(job["id"])
    assert (caught.value.code, caught.value.status) == ("job_not_found", 404)


@pytest.mark.parametrize("path", ["", "/trials", "/tasks", "/events", "/download", "/grep?q=x"])
async def test_a_strangers_job_does_not_exist(api: Api, path: str):
    await add_dataset(api.db, api.caller)
    job = await create(api)
    answer = await api.http.get(f"/api/jobs/{job['id']}{path}", headers=api.headers(api.stranger_key))
    assert answer.json()["error"]["code"] in {"job_not_found", "feature_unsupported"}
    assert answer.status_code != 403


async def test_ten_thousand_trials_are_accepted_and_read_fast(api: Api):
    import time

    await add_dataset(api.db, api.caller, tasks=[f"task-{number:04}" for number in range(1000)])
    began = time.perf_counter()
    job = await create(api, n_attempts=10)
    assert job["n_total_trials"] == 10_000
    assert time.perf_counter() - began < 4
    page = await api.get(f"/api/jobs/{job['id']}/trials", limit=100)
    assert len(page["items"]) == 100
    assert page["hasMore"]
