"""Which trials a regrade takes: those whose separate verifier can judge again what it judged (contract §6.6).

Beyond the contract, a regrade may bring a changed verifier: the one of the task of the same name in another
dataset version. What was recorded, and the network policy it was judged under, stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from domain.derivation import SourceJob, SourceTrial
from domain.errors import ApiError
from domain.requests import RequestModel
from domain.vocabulary import TrialStatus

Name = Annotated[str, Field(min_length=1, max_length=255)]


class DatasetVersionInput(RequestModel):
    """A dataset version whose tests are to judge; without `version` the active one."""

    name: Name
    version: Name | None = None


class TrialRegradeRequest(RequestModel):
    """The body of `POST /api/trials/{id}/regrade`. `with_tests` is ours."""

    with_tests: DatasetVersionInput | None = None


class RegradeRequest(TrialRegradeRequest):
    """The body of `POST /api/jobs/{id}/regrade`."""

    statuses: list[str] | None = None
    task_name: Name | None = None

    def wanted_statuses(self) -> frozenset[TrialStatus]:
        """Every status where none is named; raises `invalid_status`."""
        unknown = [status for status in self.statuses or () if status not in set(TrialStatus)]
        if unknown:
            message = f"statuses: {unknown[0][:40]} is not among {', '.join(TrialStatus)}."
            raise ApiError("invalid_status", message, param="statuses")
        return frozenset(map(TrialStatus, self.statuses or TrialStatus))


@dataclass(frozen=True)
class VerifierTask:
    """What a task says of its verifier. `refusal` is why it cannot run on the job's provider."""

    is_separate: bool
    has_steps: bool = False
    has_judge: bool = False
    refusal: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What is kept of a trial to judge: `task` is the one whose verifier is to do it, None without any."""

    was_shared: bool
    has_inputs: bool
    task: VerifierTask | None


def select_regrade(
    source: SourceJob, evidence: Mapping[str, Evidence], request: RegradeRequest
) -> list[SourceTrial]:
    """The eligible trials among those wanted; others are passed over.

    `evidence` is by trial id. Raises `invalid_status`, `job_not_terminal`, `no_regradable_trials`.
    """
    statuses = request.wanted_statuses()
    source.require_terminal()
    wanted = [
        (trial, why_ineligible(source, trial, evidence[trial.trial_id]))
        for trial in source.trials
        if trial.status in statuses and request.task_name in (None, trial.task_name)
    ]
    chosen = [trial for trial, reason in wanted if reason is None]
    if not chosen:
        reasons = Counter(reason for _, reason in wanted if reason is not None)
        told = "; ".join(f"{n} because {reason}" for reason, n in reasons.most_common()) or "none is wanted"
        message = f"No trial of the job can be regraded: {told}."
        raise ApiError("no_regradable_trials", message, details={"reasons": dict(reasons)})
    return chosen


def select_regrade_of_one(
    source: SourceJob, evidence: Mapping[str, Evidence], trial_id: str
) -> Sequence[SourceTrial]:
    """One settled trial; raises `trial_not_settled`, and `regrade_source_ineligible` with the reason."""
    (trial,) = (trial for trial in source.trials if trial.trial_id == trial_id)
    if not trial.status.is_terminal:
        message = f"Trial {trial_id} is {trial.status}; it can be regraded once it has settled."
        raise ApiError("trial_not_settled", message)
    reason = why_ineligible(source, trial, evidence[trial_id])
    if reason is not None:
        message = f"Trial {trial_id} cannot be regraded: {reason}."
        raise ApiError("regrade_source_ineligible", message, details={"reason": reason})
    return [trial]


def why_ineligible(source: SourceJob, trial: SourceTrial, evidence: Evidence) -> str | None:
    """Why a trial's verifier cannot judge again, None when it can."""
    task = evidence.task
    if not trial.status.is_terminal:
        return "it has not settled"
    if source.plan.is_regrade:
        return "it is a regrade itself; regrade the trial that it was made of"
    if task is None:
        return f"there is no built task {trial.task_name} to take the tests of"
    if task.has_steps:
        return "its task has several steps"
    if task.has_judge:
        return "its verifier asks a language model"
    if evidence.was_shared or not task.is_separate:
        return "its verifier shares the agent's box"
    if not evidence.has_inputs:
        return "nothing was recorded that its verifier could judge again"
    return task.refusal
