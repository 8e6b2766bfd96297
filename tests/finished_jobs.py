"""A job that has run, in a real store: rows by the store's own functions, files as the capture keeps them."""

from __future__ import annotations

import hashlib
from typing import Any
from uuid import uuid4

from domain.jobs import JobCreate
from domain.requests import parse_request
from domain.stats import TokenCounts, TrialOutcome, primary_reward
from domain.vocabulary import (
    AttemptPhase,
    DatasetVersionState,
    ExceptionType,
    SpendSource,
    TaskBuildState,
    TrialStatus,
)
from store import record
from store.accept import accept_job
from store.accounts import caller_of_owner
from store.blobs import Blobs
from store.database import Database, now
from store.datasets import Dataset, DatasetTask, DatasetVersion
from store.fences import Fence
from store.record import PhaseChange
from store.settle import Settlement, settle
from store.streams import add_trace_events, keep_files
from store.trials import TrialFile
from tests.factories import make_owner

DIGEST = "sha256:" + "cd" * 32
FILES = {
    "agent/oracle.txt": b"solved\n",
    "agent/stderr.log": b"",
    "verifier/test-stdout.txt": "größer\n".encode(),
    "verifier/reward.txt": b"1\n",
    "artifacts/app/report.txt": b"report",
}
AGENT_RESULT: dict[str, Any] = {
    "n_input_tokens": 0, "n_cache_tokens": 0, "n_output_tokens": 0, "cost_usd": 0.0,
    "rollout_details": None, "metadata": {"exit_code": 0, "timed_out": False},
}  # fmt: skip


async def publish(db: Database, *tasks: str, dataset: str = "demo") -> None:
    """A READY, active version `1.0` of a dataset with these tasks."""
    owner, at = await make_owner(db), now()
    dataset_id, version_id = str(uuid4()), str(uuid4())
    async with db.session() as session:
        session.add(
            Dataset(
                id=dataset_id, name=dataset, org_id=owner.default_org_id, owner_user_id=owner.id,
                active_version_id=version_id, created_at=at, updated_at=at,
            )
        )  # fmt: skip
        await session.flush()
        session.add(
            DatasetVersion(
                id=version_id, dataset_id=dataset_id, version="1.0", task_count=len(tasks),
                state=DatasetVersionState.READY.value, created_at=at,
            )
        )  # fmt: skip
        await session.flush()
        for ordinal, name in enumerate(tasks):
            session.add(
                DatasetTask(
                    version_id=version_id, task_name=name, ordinal=ordinal, digest=DIGEST,
                    state=TaskBuildState.READY.value, verdicts={}, notes=[], images={},
                    task={"artifacts": [{"source": "report.txt", "destination": None}]},
                )
            )  # fmt: skip


async def accept(db: Database, **changes: Any) -> str:
    """An accepted, running job of the published dataset; returns its id."""
    caller = await caller_of_owner(db, None)
    body = {
        "datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], "sandbox_provider": "docker",
        **changes,
    }  # fmt: skip
    accepted = await accept_job(db, caller, parse_request(JobCreate, body))
    await record.start_job(db, accepted.job_id)
    return accepted.job_id


async def trial_ids(db: Database, job_id: str) -> list[str]:
    """The job's trials, by index."""
    pool = await db.pool()
    return [
        row["id"]
        for row in await pool.fetch("SELECT id FROM trials WHERE job_id = $1 ORDER BY index", job_id)
    ]


async def run_trial(
    db: Database, blobs: Blobs, trial_id: str, reward: float | None, files: dict[str, bytes] | None = None
) -> None:
    """Take a trial from its first phase to its settle; `reward` None ends it with a ScoringError."""
    pool = await db.pool()
    job_id = await pool.fetchval("SELECT job_id FROM trials WHERE id = $1", trial_id)
    at = record.iso(now())
    window = {"agent_execution": {"started_at": at, "finished_at": at}}
    change = PhaseChange(members=window, status=TrialStatus.RUNNING, sandbox_id="box-1")
    await record.enter_phase(db, Fence(job_id, trial_id, 1, AttemptPhase.AGENT, 1), change)
    prompt = {"_prompt": {"text": "Löse es."}}
    await add_trace_events(db, trial_id, 1, [(1, "prompt", prompt), (2, "log", {"text": "a"})])
    await keep(db, blobs, trial_id, FILES if files is None else files)
    await settle(db, Fence(job_id, trial_id, 1, AttemptPhase.PERSIST, 1), settlement(reward))


def settlement(reward: float | None) -> Settlement:
    """How a trial ends that has a reward, or has none because the verifier left none."""
    rewards = None if reward is None else {"reward": reward}
    outcome = TrialOutcome(
        status=TrialStatus.SCORING_ERROR if reward is None else TrialStatus.SCORED,
        reward=primary_reward(rewards),
        rewards=rewards,
        has_exception=reward is None,
        tokens=TokenCounts(n_input_tokens=0, n_cache_tokens=0, n_output_tokens=0),
        cost_nanos=0,
        spend_source=SpendSource.MEASURED,
    )
    exception = None if reward is not None else (ExceptionType.SCORING, "no reward file was left")
    return Settlement(outcome=outcome, exception=exception, members={"agent_result": AGENT_RESULT})


async def keep(db: Database, blobs: Blobs, trial_id: str, files: dict[str, bytes]) -> None:
    """Keep files of a trial's first attempt number."""
    rows: list[TrialFile] = []
    for path, content in files.items():
        digest = hashlib.sha256(content).hexdigest()
        key = f"trials/{trial_id}/1/{digest}"
        await blobs.put(key, content)
        rows.append(
            TrialFile(
                trial_id=trial_id, attempt_number=1, path=path, size_bytes=len(content), sha256=digest,
                blob_key=key, mode=0o755 if path.endswith(".sh") else 0o644,
            )
        )  # fmt: skip
    job_id = await (await db.pool()).fetchval("SELECT job_id FROM trials WHERE id = $1", trial_id)
    await keep_files(db, Fence(job_id, trial_id, 1, AttemptPhase.PERSIST, 1), rows)


async def finished_job(db: Database, blobs: Blobs) -> str:
    """Two tasks × two attempts: three rewards and one ScoringError; returns the job's id."""
    await publish(db, "alpha", "beta mit Umläuten")
    job_id = await accept(db, n_attempts=2)
    for trial_id, reward in zip(await trial_ids(db, job_id), (1.0, 0.0, 1.0, None), strict=True):
        await run_trial(db, blobs, trial_id, reward)
    await record.finish_job(db, job_id)
    return job_id
