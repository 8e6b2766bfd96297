"""What a job's end is called when a cancel came late, or stops came before it."""

from __future__ import annotations

from domain.stats import TrialOutcome
from domain.vocabulary import AttemptPhase, TrialStatus
from store import record
from store.database import Database
from store.fences import Fence
from store.settle import Settlement, settle
from tests.finished_jobs import accept, publish, trial_ids


async def end_trial(db: Database, job_id: str, trial_id: str, status: TrialStatus) -> None:
    fence = Fence(job_id, trial_id, 1, AttemptPhase.PERSIST, 1)
    await settle(db, fence, Settlement(TrialOutcome(status=status)))


async def cancel(db: Database, job_id: str) -> None:
    async with db.transaction() as connection:
        await record.cancel_job(connection, job_id)


async def job_of_two(db: Database) -> tuple[str, list[str]]:
    await publish(db, "alpha", "beta")
    job_id = await accept(db)
    return job_id, await trial_ids(db, job_id)


async def test_a_trial_stopped_on_its_own_does_not_make_a_late_cancel_the_jobs_end(db: Database) -> None:
    job_id, [one, two] = await job_of_two(db)
    await end_trial(db, job_id, one, TrialStatus.CANCELLED)
    await end_trial(db, job_id, two, TrialStatus.SCORED)
    await cancel(db, job_id)
    assert (await record.finish_job(db, job_id))["status"] == "COMPLETED"


async def test_a_cancel_that_ended_a_trial_is_the_jobs_end(db: Database) -> None:
    job_id, [one, two] = await job_of_two(db)
    fence = Fence(job_id, one, 1, AttemptPhase.AGENT, 1)
    await record.enter_phase(db, fence, record.PhaseChange(status=TrialStatus.RUNNING))
    await end_trial(db, job_id, two, TrialStatus.SCORED)
    await cancel(db, job_id)
    await end_trial(db, job_id, one, TrialStatus.CANCELLED)
    assert (await record.finish_job(db, job_id))["status"] == "CANCELLED"


async def test_a_cancel_of_what_is_queued_is_the_jobs_end(db: Database) -> None:
    job_id, _ = await job_of_two(db)
    await cancel(db, job_id)
    assert (await record.finish_job(db, job_id))["status"] == "CANCELLED"
