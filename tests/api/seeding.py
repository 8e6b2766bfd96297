"""Rows as imports and trials leave them, for tests that need no worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from domain.stats import TrialOutcome
from domain.vocabulary import AttemptPhase, ExceptionType, TrialStatus
from store import record
from store.accounts import Caller
from store.database import Database
from store.fences import Fence
from store.record import PhaseChange
from store.settle import Settlement, settle

TASK = """
INSERT INTO dataset_tasks (version_id, task_name, ordinal, state, verdicts, notes, images, failure,
                           agent_timeout_sec, verifier_timeout_sec)
VALUES ($1, $2, $3, $4, $5, '[]', '{}', $6, 3600, 600)
"""
VERDICTS = {"local": {"ok": True, "reason": None, "degrades_to": None}}
FAILURE = {"code": "image_build_failed", "step": "image-build", "message": "no such file", "excerpt": "log"}


async def add_dataset(
    db: Database,
    caller: Caller,
    name: str = "demo",
    *,
    version: str = "1.0",
    tasks: Sequence[str] = ("alpha", "beta", "gamma"),
    failed: Sequence[str] = (),
    is_active: bool = True,
) -> str:
    """A READY version; returns its id."""
    pool = await db.pool()
    dataset_id, version_id = f"d-{name}", f"v-{name}-{version}"
    await pool.execute(
        "INSERT INTO datasets (id, name, org_id, owner_user_id, description, created_at, updated_at)"
        " VALUES ($1, $2, $3, $4, 'A demo', now(), now()) ON CONFLICT DO NOTHING",
        dataset_id,
        name,
        caller.default_org_id,
        caller.user_id,
    )
    await pool.execute(
        "INSERT INTO dataset_versions (id, dataset_id, version, state, created_at, task_count,"
        " n_failed_tasks) VALUES ($1, $2, $3, 'READY', now(), $4, $5)",
        version_id,
        dataset_id,
        version,
        len(tasks),
        len(failed),
    )
    rows = [(version_id, task, n, "READY", VERDICTS, None) for n, task in enumerate(tasks)]
    rows += [(version_id, task, len(tasks) + n, "FAILED", {}, FAILURE) for n, task in enumerate(failed)]
    await pool.executemany(TASK, rows)
    if is_active:
        await pool.execute("UPDATE datasets SET active_version_id = $2 WHERE id = $1", dataset_id, version_id)
    return version_id


async def start_trial(db: Database, trial: dict[str, Any] | Any) -> Fence:
    """Move a trial to RUNNING in its agent phase."""
    fence = Fence(trial["job_id"], trial["id"], 1, AttemptPhase.AGENT, 1)
    await record.enter_phase(db, fence, PhaseChange(status=TrialStatus.RUNNING))
    return fence


async def settle_trial(db: Database, trial: Any, reward: float | None, **members: Any) -> None:
    """Settle a trial as SCORED with a reward, or as SCORING_ERROR without one."""
    fence = Fence(trial["job_id"], trial["id"], 1, AttemptPhase.PERSIST, 1)
    if reward is None:
        outcome = TrialOutcome(status=TrialStatus.SCORING_ERROR, has_exception=True)
        settlement = Settlement(outcome, (ExceptionType.SCORING, "x" * 5000), members)
    else:
        outcome = TrialOutcome(status=TrialStatus.SCORED, reward=reward, rewards={"reward": reward})
        settlement = Settlement(outcome, None, members)
    await settle(db, fence, settlement)


async def run_job(db: Database, job_id: str, rewards: Sequence[float | None]) -> list[Any]:
    """Start a job, settle its trials in order, finish it; returns the trials' rows."""
    await record.start_job(db, job_id)
    pool = await db.pool()
    rows = await pool.fetch("SELECT * FROM trials WHERE job_id = $1 ORDER BY index", job_id)
    for row, reward in zip(rows, rewards, strict=True):
        await start_trial(db, row)
        await settle_trial(db, row, reward)
    await record.finish_job(db, job_id)
    return list(rows)
