"""Which trials of a job a derived one takes, and the plan that it becomes (contract §6.6).

Pure selection: the store reads the source's trials, these functions choose among them or refuse.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from pydantic_core import to_json

from domain.errors import ApiError
from domain.jobs import DatasetVersionRef, Derivation, JobPlan, TrialSlot, trial_id_of
from domain.requests import RequestModel
from domain.vocabulary import ExceptionType, JobStatus, SourceAction, TrialStatus

MAX_JOB_NAME_CHARS = 200
RESUMED_EXCEPTIONS = frozenset(
    {
        ExceptionType.SCORING.value,
        ExceptionType.INFRASTRUCTURE.value,
        ExceptionType.USAGE_LIMIT.value,
        ExceptionType.INCOMPLETE.value,
        ExceptionType.CANCELLED.value,
    }
)
"""What a resume takes up: failures, and trials that were stopped."""

FAILED_STATUSES = frozenset(
    {
        TrialStatus.SCORING_ERROR,
        TrialStatus.INFRASTRUCTURE_ERROR,
        TrialStatus.BUDGET,
        TrialStatus.INDETERMINATE,
    }
)
"""What a retry of the failed takes: a stopped trial is none of them."""

TrialId = Annotated[str, Field(min_length=1, max_length=255)]


class ResumeRequest(RequestModel):
    """The body of `POST /api/jobs/{id}/resume`; an empty filter filters nothing."""

    filter_error_types: list[Annotated[str, Field(min_length=1, max_length=255)]] | None = None


class RetryRequest(RequestModel):
    """The body of `POST /api/jobs/{id}/retry`: trials by name, or the failed ones, or without both all."""

    trial_ids: Annotated[list[TrialId], Field(min_length=1, max_length=10_000)] | None = None
    failed_only: bool | None = None


@dataclass(frozen=True)
class SourceTrial:
    """A trial that may be chosen. `exceptions` are the names of what ended it: the contract's type and, where
    it or its agent's end has one, Harbor's."""

    trial_id: str
    index: int
    source: str
    version_id: str
    task_name: str
    arm_index: int
    attempt: int
    status: TrialStatus
    exceptions: frozenset[str] = frozenset()


@dataclass(frozen=True)
class SourceJob:
    """A job to derive another from: its plan, and its trials by index."""

    plan: JobPlan
    status: JobStatus
    trials: Sequence[SourceTrial]

    def refuse_regrade(self) -> None:
        """Raises `feature_unsupported` for a job without agents, which can only be regraded."""
        derivation = self.plan.derivation
        if derivation is not None and derivation.action == "regrade":
            message = f"The job is a regrade of {derivation.source_job_id}: it has no agent to run again."
            details = {"source_job_id": derivation.source_job_id}
            raise ApiError("feature_unsupported", message, details=details)

    def require_terminal(self) -> None:
        """Raises `job_not_terminal`."""
        if not self.status.is_terminal:
            raise ApiError(
                "job_not_terminal", f"The job is {self.status.value}; wait for its end or cancel it."
            )


@dataclass(frozen=True)
class DerivedJob:
    """A plan with the source's trials that it runs again."""

    plan: JobPlan
    chosen: Sequence[SourceTrial]

    def slots(self, version_id: str | None = None) -> Iterator[TrialSlot]:
        """Every trial, by index, of the task as its source's, or as `version_id` has it."""
        for index, trial in enumerate(self.chosen):
            yield TrialSlot(
                index=index,
                trial_id=trial_id_of(self.plan.job_id, index),
                source=trial.source,
                version_id=version_id or trial.version_id,
                task_name=trial.task_name,
                arm_index=trial.arm_index,
                attempt=trial.attempt,
                source_trial_id=trial.trial_id,
            )


def select_resume(source: SourceJob, request: ResumeRequest) -> list[SourceTrial]:
    """Failed and stopped trials, and those of a cancelled job that never began; scored ones never.

    Raises `job_not_terminal`, `no_failed_trials`.
    """
    source.refuse_regrade()
    source.require_terminal()
    wanted = frozenset(request.filter_error_types or RESUMED_EXCEPTIONS)
    chosen = [trial for trial in source.trials if wanted & _resumable_names(trial)]
    return _refuse_none(chosen, "resume")


def _resumable_names(trial: SourceTrial) -> frozenset[str]:
    """What a filter may call the trial by; nothing for one that is not taken up."""
    if trial.status is TrialStatus.QUEUED:
        return frozenset({ExceptionType.CANCELLED.value})
    if trial.status is TrialStatus.SCORED or not trial.exceptions & RESUMED_EXCEPTIONS:
        return frozenset()
    return trial.exceptions


def select_retry(source: SourceJob, request: RetryRequest) -> list[SourceTrial]:
    """The named trials, or the failed ones, or every one.

    Raises `invalid_input` for both selectors at once, `trial_not_found`, `trial_not_settled`,
    `job_not_terminal`, `no_failed_trials`.
    """
    source.refuse_regrade()
    if request.trial_ids is not None:
        if request.failed_only:
            message = "failed_only: not together with trial_ids; name trials or take the failed ones."
            raise ApiError("invalid_input", message, param="failed_only")
        return _named(source, request.trial_ids, param="trial_ids")
    source.require_terminal()
    if not request.failed_only:
        return list(source.trials)
    return _refuse_none([trial for trial in source.trials if trial.status in FAILED_STATUSES], "retry")


def select_retry_of_one(source: SourceJob, trial_id: str) -> list[SourceTrial]:
    """One trial by name, as `select_retry` takes it."""
    source.refuse_regrade()
    return _named(source, [trial_id], param=None)


def _named(source: SourceJob, trial_ids: Sequence[str], *, param: str | None) -> list[SourceTrial]:
    """All of them or none."""
    prefix = f"{param}: " if param else ""
    owned = {trial.trial_id: trial for trial in source.trials}
    unknown = [trial_id for trial_id in trial_ids if trial_id not in owned]
    if unknown:
        message = f"{prefix}the job has no trial {unknown[0]}."
        raise ApiError("trial_not_found", message, param=param, details={"trial_ids": unknown})
    chosen = sorted({owned[trial_id] for trial_id in trial_ids}, key=lambda trial: trial.index)
    live = [trial for trial in chosen if not trial.status.is_terminal]
    if live:
        message = (
            f"{prefix}trial {live[0].trial_id} is {live[0].status}; it can be retried once it has settled."
        )
        details = {"trial_ids": [trial.trial_id for trial in live]}
        raise ApiError("trial_not_settled", message, param=param, details=details)
    return chosen


def _refuse_none(chosen: list[SourceTrial], action: SourceAction) -> list[SourceTrial]:
    if not chosen:
        raise ApiError("no_failed_trials", f"The job has no trial to {action}.")
    return chosen


def selection_fingerprint(source_job_id: str, chosen: Sequence[SourceTrial]) -> str:
    """What an idempotency key of a derived job is bound to: the trials that the request came to."""
    document = {"source_job_id": source_job_id, "trials": [trial.trial_id for trial in chosen]}
    return hashlib.sha256(to_json(document)).hexdigest()


def derive(
    source: JobPlan,
    chosen: Sequence[SourceTrial],
    action: SourceAction,
    job_id: str,
    with_tests: DatasetVersionRef | None = None,
) -> DerivedJob:
    """The plan of a derived job: its source's, with only the chosen trials."""
    n_tasks = Counter(name for name, _ in {(trial.source, trial.task_name) for trial in chosen})
    update = {
        "job_id": job_id,
        "job_name": f"{source.job_name[: MAX_JOB_NAME_CHARS - len(action) - 1]}-{action}",
        "datasets": tuple(
            dataset.model_copy(update={"n_tasks": n_tasks[dataset.name]}) for dataset in source.datasets
        ),
        "build_exclusions": (),
        "derivation": Derivation(
            action=action,
            source_job_id=source.job_id,
            n_trials=len(chosen),
            # A regrade runs no agent.
            n_spending_trials=sum(
                action != "regrade" and source.arms[trial.arm_index].spends for trial in chosen
            ),
            with_tests=with_tests,
        ),
    }
    return DerivedJob(source.model_copy(update=update), chosen)
