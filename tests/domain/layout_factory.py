"""A small finished job with three trials for tests of downloads: scored, failed, and cancelled in the queue.

`python -m tests.domain.layout_factory` writes what it renders to `tests/domain/golden/layouts/`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from domain import layouts
from domain.jobs import JobPlan, PlannedJob, TrialSlot
from domain.layout_records import (
    DownloadedJob,
    DownloadedTask,
    DownloadedTrial,
    JobGroupSums,
    trial_lock,
    verdict_of,
)
from domain.layouts import LoggedEvent
from domain.stats import GroupSums, JobTotals, TrialOutcome
from domain.trials import TrialColumns
from domain.vocabulary import JobStatus, SpendSource, TrialStatus
from tests.domain.job_factory import make_version, plan_trials

GOLDEN = Path(__file__).parent / "golden" / "layouts"
START = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
DIGEST = "sha256:" + "ab" * 32

SCORED: dict[str, Any] = {
    "verifier_result": {"rewards": {"reward": 1.0}},
    "exception_info": None,
    "spend_source": "measured",
    "agent_result": {
        "n_input_tokens": 0, "n_cache_tokens": 0, "n_output_tokens": 0, "cost_usd": 0.0,
        "rollout_details": None, "metadata": {"exit_code": 0, "timed_out": False},
    },
    "queue_wait": {"started_at": "2026-03-01T12:00:00.000000Z", "finished_at": "2026-03-01T12:00:00.250000Z"},
    "agent_execution": {
        "started_at": "2026-03-01T12:00:01.000000Z", "finished_at": "2026-03-01T12:00:02.500000Z",
    },
    "x_image": {"id": "sha256:feed", "base_image_replaced": True},
}  # fmt: skip
FAILED: dict[str, Any] = {
    "verifier_result": None,
    "exception_info": {
        "exception_type": "ScoringError", "exception_message": "no reward file\n\nlast words",
        "exception_traceback": "", "occurred_at": "2026-03-01T12:00:03.000000Z",
    },
    "spend_source": "measured_provisional",
    "agent_result": {
        "n_input_tokens": 10, "n_cache_tokens": 2, "n_output_tokens": 3, "cost_usd": 0.25,
        "rollout_details": None, "metadata": None,
    },
    "x_left_out": ["/logs/agent: larger than 268435456 bytes"],
}  # fmt: skip
CANCELLED: dict[str, Any] = {
    "exception_info": {
        "exception_type": "CancelledError", "exception_message": "The trial was stopped.",
        "exception_traceback": "", "occurred_at": "2026-03-01T12:00:04.000000Z",
    },
}  # fmt: skip


def make_trial(
    slot: TrialSlot, plan: JobPlan, status: TrialStatus, result: dict[str, Any]
) -> DownloadedTrial:
    has_run = status is not TrialStatus.CANCELLED
    return DownloadedTrial(
        columns=TrialColumns(
            id=slot.trial_id,
            job_id=plan.job_id,
            task_name=slot.task_name,
            source=slot.source,
            attempt=slot.attempt,
            status=status,
            reward=(result.get("verifier_result") or {}).get("rewards", {}).get("reward"),
            phase=None,
            n_retries=0,
            retries=[],
            sandbox_id="box-1" if has_run else None,
            has_files=has_run,
            started_at=START if has_run else None,
            finished_at=START + timedelta(seconds=5),
        ),
        attempt_number=1,
        arm=plan.arms[slot.arm_index],
        evals_key=plan.evals_keys()[slot.arm_index, slot.source],
        result=result,
        task=DownloadedTask("1.0", DIGEST, (("/app/report.txt", None), ("/app/out", "results"))),
    )


def make_trials(planned: PlannedJob) -> list[DownloadedTrial]:
    endings = (
        (TrialStatus.SCORED, SCORED),
        (TrialStatus.SCORING_ERROR, FAILED),
        (TrialStatus.CANCELLED, CANCELLED),
    )
    return [
        make_trial(slot, planned.plan, status, result)
        for slot, (status, result) in zip(planned.slots(), endings, strict=True)
    ]


def make_job(plan: JobPlan, trials: list[DownloadedTrial]) -> DownloadedJob:
    totals, sums = JobTotals(), GroupSums(n_total=len(trials))
    for trial in trials:
        outcome = TrialOutcome(
            status=trial.columns.status,
            reward=trial.columns.reward,
            rewards=trial.rewards,
            has_exception=trial.result.get("exception_info") is not None,
            cost_nanos=250_000_000 if trial.columns.status is TrialStatus.SCORING_ERROR else 0,
            spend_source=SpendSource.MEASURED,
        )
        totals, sums = totals.settle(outcome), sums.settle(outcome)
    return DownloadedJob(
        plan=plan,
        org="ada",
        status=JobStatus.CANCELLED,
        by_status={"SCORED": 1, "SCORING_ERROR": 1, "CANCELLED": 1},
        totals=totals,
        groups={plan.evals_keys()[0, "demo"]: JobGroupSums(sums, {})},
        started_at=START,
        updated_at=START + timedelta(seconds=9),
        finished_at=START + timedelta(seconds=9),
    )


def make_events(trial: DownloadedTrial) -> list[LoggedEvent]:
    data = {"trial_id": trial.columns.id, "task_name": trial.columns.task_name}
    return [
        LoggedEvent(START + timedelta(milliseconds=500), "trial.running", data),
        LoggedEvent(
            START + timedelta(seconds=4), "trial.settled", {**data, "status": trial.columns.status.value}
        ),
    ]


KEPT = (
    "agent/oracle.txt",
    "agent/trace-parsed.jsonl",
    "artifacts/app/report.txt",
    "artifacts/results/a.json",
    "verifier/test-stdout.txt",
    "verifier/test-stdout.txt/odd",
)


def rendered() -> dict[str, bytes]:
    """The folder that the job renders to, by path."""
    planned = plan_trials(make_version("alpha", "beta", "gamma"))
    trials = make_trials(planned)
    job = make_job(planned.plan, trials)
    locks = [lock for trial in trials if (lock := trial_lock(planned.plan, trial))]
    files = layouts.job_records(job, map(verdict_of, trials), locks)
    for trial in trials:
        kept = layouts.kept_names(KEPT if trial.columns.started_at else ())
        events = make_events(trial) if trial.columns.started_at else []
        records = layouts.trial_records(planned.plan, trial, kept, events)
        files |= {f"{trial.name}/{path}": content for path, content in records.items()}
    return files


if __name__ == "__main__":
    for path, content in rendered().items():
        target = GOLDEN / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
