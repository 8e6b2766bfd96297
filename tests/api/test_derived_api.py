from __future__ import annotations

import asyncio
from typing import Any

import pytest
from evolve import EvolveAPIError

from domain.stats import TrialOutcome
from domain.vocabulary import AttemptPhase, ExceptionType, TrialStatus
from store import record
from store.budgets import set_credits
from store.fences import Fence
from store.settle import Settlement, settle
from tests.api.conftest import Api
from tests.api.seeding import add_dataset, run_job, settle_trial, start_trial

ARMS = [{"name": "oracle", "model_name": None}, {"name": "nop", "model_name": None}]


async def start(api: Api, **changes: Any) -> Any:
    await add_dataset(api.db, api.caller)
    body = {"datasets": [{"name": "demo"}], "agents": ARMS[:1], **changes}
    return await api.published().jobs.start(**body)


async def lose(api: Api, trial: Any) -> None:
    """Settle a trial as an infrastructure failure."""
    outcome = TrialOutcome(status=TrialStatus.INFRASTRUCTURE_ERROR, has_exception=True)
    fence = Fence(trial["job_id"], trial["id"], 1, AttemptPhase.PERSIST, 1)
    await settle(api.db, fence, Settlement(outcome, (ExceptionType.INFRASTRUCTURE, "the box is gone")))


async def rows_of(api: Api, job_id: str) -> list[Any]:
    pool = await api.db.pool()
    return await pool.fetch("SELECT * FROM trials WHERE job_id = $1 ORDER BY index", job_id)


async def finish(api: Api, job_id: str, ends: list[float | str | None]) -> list[str]:
    """Run a job's trials to these ends (a reward, None, or "lost"); returns their ids."""
    await record.start_job(api.db, job_id)
    rows = await rows_of(api, job_id)
    for row, end in zip(rows, ends, strict=True):
        await start_trial(api.db, row)
        await (lose(api, row) if isinstance(end, str) else settle_trial(api.db, row, end))
    await record.finish_job(api.db, job_id)
    return [row["id"] for row in rows]


async def refused(call: Any) -> EvolveAPIError:
    with pytest.raises(EvolveAPIError) as caught:
        await call
    return caught.value


async def test_a_resume_makes_one_trial_of_the_one_that_was_lost(api: Api):
    source = await start(api, retry={"max_retries": 0}, max_trial_spend_usd=7.0)
    ids = await finish(api, source.id, [1.0, 0.0, "lost"])
    jobs = api.published().jobs
    before = await jobs.get(source.id)
    job = await jobs.resume(source.id)
    assert (job.status, job.n_total_trials, job.counts.tasks) == ("QUEUED", 1, 1)
    assert [(s.action, s.type, s.job_id) for s in job.source_jobs] == [("resume", "hub", source.id)]
    assert (job.is_regrade, job.idempotent_replay, job.viewer) == (False, False, None)
    assert (job.datasets, job.agents, job.sandbox_provider) == (
        source.datasets,
        source.agents,
        source.sandbox_provider,
    )
    assert (job.max_trial_spend_usd, job.retry) == (7.0, source.retry)
    assert job.org == source.org
    [trial] = [trial async for trial in jobs.trials(job.id)]
    assert (trial.task_name, trial.attempt, trial.status) == ("gamma", 1, "QUEUED")
    raw = await api.get(f"/api/trials/{trial.id}")
    assert raw["x_source_trial_id"] == ids[2]
    assert raw["x_evals_key"] == "oracle__demo"
    assert "x_source_trial_id" not in await api.get(f"/api/trials/{ids[2]}")

    await run_job(api.db, job.id, [1.0])
    done, after = await jobs.get(job.id), await jobs.get(source.id)
    assert after == before
    assert done.stats["n_completed_trials"] + after.stats["n_completed_trials"] == 4
    assert done.stats["evals"]["oracle__demo"]["metrics"] == [{"mean": 1.0}]
    assert (await refused(jobs.resume(job.id))).code == "no_failed_trials"
    assert [listed.id async for listed in jobs.list()] == [job.id, source.id]


async def test_a_filter_narrows_a_resume(api: Api):
    source = await start(api)
    ids = await finish(api, source.id, [1.0, None, "lost"])
    jobs = api.published().jobs
    job = await jobs.resume(source.id, filter_error_types=["ScoringError"])
    [trial] = await rows_of(api, job.id)
    assert trial["source_trial_id"] == ids[1]
    assert (await refused(jobs.resume(source.id, filter_error_types=["CancelledError"]))).status == 409


async def test_what_a_cancel_stopped_is_resumed(api: Api):
    source = await start(api)
    jobs = api.published().jobs
    await jobs.cancel(source.id)
    assert (await refused(jobs.resume(source.id))).code == "job_not_terminal"
    await record.finish_job(api.db, source.id)
    assert (await jobs.resume(source.id)).n_total_trials == 3


async def test_a_retry_takes_all_failed_or_named_trials(api: Api):
    source = await start(api, agents=ARMS, n_attempts=2)
    ids = await finish(api, source.id, [1.0, 0.0, None, "lost", *[1.0] * 8])
    jobs = api.published().jobs
    whole = await jobs.retry(source.id)
    assert whole.n_total_trials == 12
    assert [s.action for s in whole.source_jobs] == ["retry"]
    failed = await rows_of(api, (await jobs.retry(source.id, failed_only=True)).id)
    assert [row["source_trial_id"] for row in failed] == ids[2:4]
    assert [(row["arm_index"], row["attempt"]) for row in failed] == [(1, 1), (1, 2)]
    named = await jobs.retry(source.id, trial_ids=[ids[4], ids[0]])
    assert [row["source_trial_id"] for row in await rows_of(api, named.id)] == [ids[0], ids[4]]
    assert (named.counts.tasks, named.counts.agents) == (2, 2)
    # A group without trials is not told: nop has none here.
    assert list((await jobs.get(named.id)).stats["evals"]) == ["oracle__demo"]
    both = await refused(jobs.retry(source.id, trial_ids=ids[:1], failed_only=True))
    assert (both.code, both.status) == ("invalid_input", 400)


async def test_named_trials_of_a_running_job_are_retried_when_they_have_settled(api: Api):
    source = await start(api)
    await record.start_job(api.db, source.id)
    rows = await rows_of(api, source.id)
    await settle_trial(api.db, rows[0], 1.0)
    client = api.published()
    ids = [row["id"] for row in rows]
    assert (await client.jobs.retry(source.id, trial_ids=ids[:1])).n_total_trials == 1
    live = await refused(client.jobs.retry(source.id, trial_ids=ids))
    assert (live.code, live.status, live.details) == ("trial_not_settled", 409, {"trial_ids": ids[1:]})
    assert (await refused(client.trials.retry(ids[1]))).code == "trial_not_settled"
    assert (await refused(client.jobs.retry(source.id, trial_ids=["nobody"]))).code == "trial_not_found"
    assert (await refused(client.jobs.retry(source.id))).code == "job_not_terminal"


async def test_the_two_doors_of_a_retry_share_their_key(api: Api):
    source = await start(api)
    ids = await finish(api, source.id, [1.0, 0.0, None])
    client = api.published()
    first = await client.jobs.retry(source.id, trial_ids=[ids[0]], idempotency_key="k")
    again = await client.trials.retry(ids[0], idempotency_key="k")
    assert (again.id, again.idempotent_replay, first.idempotent_replay) == (first.id, True, False)
    reused = await refused(client.trials.retry(ids[1], idempotency_key="k"))
    assert (reused.code, reused.status) == ("idempotency_key_reused", 409)
    # The failed one, named or as what failed, is the same selection; a resume has keys of its own.
    failed = await client.jobs.retry(source.id, failed_only=True, idempotency_key="f")
    assert (await client.trials.retry(ids[2], idempotency_key="f")).id == failed.id
    resumed = await client.jobs.resume(source.id, idempotency_key="f")
    assert resumed.id != failed.id
    assert not resumed.idempotent_replay
    assert (await client.jobs.resume(source.id, idempotency_key="f")).id == resumed.id


async def test_one_key_at_the_same_time_makes_one_job(api: Api):
    source = await start(api)
    await finish(api, source.id, [1.0, 0.0, None])
    jobs = api.published().jobs
    replies = await asyncio.gather(*(jobs.resume(source.id, idempotency_key="k") for _ in range(4)))
    assert len({job.id for job in replies}) == 1
    assert sorted(job.idempotent_replay for job in replies) == [False, True, True, True]
    pool = await api.db.pool()
    assert await pool.fetchval("SELECT count(*) FROM intents WHERE kind = 'job.start'") == 2


async def test_nothing_is_derived_by_strangers_or_without_credits(api: Api):
    source = await start(api)
    ids = await finish(api, source.id, [1.0, 0.0, None])
    stranger, client = api.published(api.stranger_key), api.published()
    assert (await refused(stranger.jobs.resume(source.id))).code == "job_not_found"
    assert (await refused(stranger.jobs.retry(source.id))).code == "job_not_found"
    assert (await refused(stranger.trials.retry(ids[0]))).code == "trial_not_found"
    await set_credits(api.db, api.caller.user_id, 0)
    for call in (client.jobs.resume(source.id), client.jobs.retry(source.id), client.trials.retry(ids[0])):
        assert (await refused(call)).code == "insufficient_credits"
    pool = await api.db.pool()
    assert await pool.fetchval("SELECT count(*) FROM jobs") == 1


async def test_a_derived_job_outlives_its_source(api: Api):
    source = await start(api)
    await finish(api, source.id, [1.0, 0.0, None])
    jobs = api.published().jobs
    derived = await jobs.resume(source.id)
    assert (await jobs.delete(source.id)).trials_deleted == 3
    assert [s.job_id for s in (await jobs.get(derived.id)).source_jobs] == [source.id]
    # What failed in it can be run again all the same.
    await run_job(api.db, derived.id, [None])
    again = await jobs.resume(derived.id)
    assert [s.job_id for s in again.source_jobs] == [derived.id]
