"""A trial that was retried, as the published client reads it (contract 3.6, 3.8, 6.3)."""

from __future__ import annotations

from typing import Any

import pytest
from evolve import EvolveAPIError

from domain.retries import RetryAfter
from domain.stats import TrialOutcome
from domain.vocabulary import AttemptPhase, ExceptionType, SpendSource, TrialStatus
from store.fences import Fence
from store.settle import Settlement, settle
from tests.api.conftest import Api
from tests.api.seeding import add_dataset, start_trial
from tests.api.test_trials_api import BODY, keep


@pytest.fixture
async def retried(api: Api) -> Any:
    """The first of three trials, queued again after its first attempt, which left a file."""
    await add_dataset(api.db, api.caller)
    answer = await api.http.post("/api/jobs", json={**BODY, "retry": {"max_retries": 3}})
    pool = await api.db.pool()
    [trial] = await pool.fetch(
        "SELECT * FROM trials WHERE job_id = $1 ORDER BY index LIMIT 1", answer.json()["id"]
    )
    await start_trial(api.db, trial)
    await keep(api, trial["id"], {"verifier/test-stdout.txt": b"half of it"})
    failed = TrialOutcome(
        status=TrialStatus.INFRASTRUCTURE_ERROR,
        has_exception=True,
        cost_nanos=250_000_000,
        spend_source=SpendSource.MEASURED,
    )
    settlement = Settlement(
        outcome=failed,
        exception=(ExceptionType.INFRASTRUCTURE, "the box is gone"),
        signature="sandbox_death",
        verdict=RetryAfter(delay_sec=1.0, max_retries=3),
    )
    await settle(api.db, Fence(trial["job_id"], trial["id"], 1, AttemptPhase.PERSIST, 1), settlement)
    return trial


async def test_its_body_is_the_newest_attempts_and_names_the_ones_before(api: Api, retried: Any) -> None:
    trial = await api.published().trials.get(retried["id"])
    assert (trial.status, trial.n_retries, trial.exception_info) == ("QUEUED", 1, None)
    [before] = trial.retries
    assert (before.attempt_number, before.cost_usd) == (1, 0.25)
    assert before.exception_info.exception_message == "the box is gone"


async def test_its_job_counts_the_retry_and_keeps_the_spend(api: Api, retried: Any) -> None:
    job = await api.published().jobs.get(retried["job_id"])
    assert (job.retry["max_retries"], job.retry["min_wait_sec"]) == (3, 1.0)
    assert (job.stats.get("n_retries"), job.stats.get("n_errored_trials")) == (1, 0)
    assert job.stats.get("cost_usd") == 0.25
    assert job.trials.by_status["QUEUED"] == 3


async def test_output_of_the_attempt_before_is_withheld_with_the_reason(api: Api, retried: Any) -> None:
    trials = api.published().trials
    assert (await trials.files(retried["id"])).items == []
    with pytest.raises(EvolveAPIError, match="attempt number 1 was retried"):
        await trials.file(retried["id"], "verifier/test-stdout.txt")
    artifact = (await api.http.get(f"/api/trials/{retried['id']}/trace?stream=verifier")).json()
    assert artifact == {
        "log": None, "reason": "attempt number 1 was retried, and its output is not the trial's"
    }  # fmt: skip


async def test_its_events_are_a_settle_and_then_the_retry(api: Api, retried: Any) -> None:
    pool = await api.db.pool()
    rows = await pool.fetch(
        "SELECT type FROM job_events WHERE job_id = $1 AND type LIKE 'trial.%' ORDER BY seq",
        retried["job_id"],
    )
    assert [row["type"] for row in rows] == ["trial.settled", "trial.retrying"]
