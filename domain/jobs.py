"""A job: what a request may say, and the plan that it becomes (contract §3.7, §6.1).

A plan fixes everything that decides what runs: dataset versions, tasks, arms, attempts, the policy.
Its trials are numbered datasets → tasks → arms → attempts, and a trial's id follows from its number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from domain.arms import AgentArm, AgentArmInput
from domain.errors import ApiError
from domain.evals_keys import evals_keys
from domain.requests import RequestModel, sorted_keys
from domain.retry_policy import RetryConfig, RetryConfigInput
from domain.selection import TaskFilter, exclusion_note
from domain.vocabulary import SandboxProvider, SourceAction

DEFAULT_CONCURRENT_TRIALS = 4
MAX_CONCURRENT_TRIALS = 150
MAX_ATTEMPTS = 1000
MAX_TRIALS = 10_000
DEFAULT_TRIAL_SPEND_USD = 200.0
# Keeps a job's worst case (cap × trials × (retries + 1)) within 64 bits of nano-dollars.
MAX_TRIAL_SPEND_USD = 50_000.0
JUDGE_ENV_KEYS = frozenset({"REWARDKIT_JUDGE", "REWARDKIT_MODEL"})

Name = Annotated[str, Field(min_length=1, max_length=255)]
Pattern = Annotated[str, Field(min_length=1, max_length=500)]
Multiplier = Annotated[float, Field(gt=0)]


class DatasetSelector(RequestModel):
    """One dataset of a job with its task filters."""

    name: Name
    version: Name | None = None
    task_names: list[Pattern] | None = None
    exclude_task_names: list[Pattern] | None = None
    n_tasks: Annotated[int, Field(ge=1)] | None = None

    def task_filter(self) -> TaskFilter:
        """The filters as selection takes them."""
        return TaskFilter(tuple(self.task_names or ()), tuple(self.exclude_task_names or ()), self.n_tasks)


class JobCreate(RequestModel):
    """The body of `POST /api/jobs`. A null member means the same as an absent one, but for
    `retry.exclude_exceptions`."""

    job_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    org: Name | None = None
    datasets: Annotated[list[DatasetSelector], Field(min_length=1, max_length=100)]
    agents: Annotated[list[AgentArmInput], Field(min_length=1, max_length=100)]
    n_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)] | None = None
    n_concurrent_trials: Annotated[int, Field(ge=1, le=MAX_CONCURRENT_TRIALS)] | None = None
    max_trial_spend_usd: Annotated[float, Field(gt=0, le=MAX_TRIAL_SPEND_USD)] | None = None
    sandbox_provider: Literal["docker", "local", "e2b", "daytona", "modal"] | None = None
    retry: RetryConfigInput | None = None
    analyze: dict[str, Any] | None = None
    system_log: bool | None = None
    timeout_multiplier: Multiplier | None = None
    agent_timeout_multiplier: Multiplier | None = None
    verifier_timeout_multiplier: Multiplier | None = None
    agent_setup_timeout_multiplier: Multiplier | None = None
    environment_build_timeout_multiplier: Multiplier | None = None
    agent_env: dict[str, str] | None = None
    verifier_env: dict[str, str] | None = None
    secrets: list[dict[str, Any]] | None = None

    def refuse_unhonoured(self) -> None:
        """Raises for what is never accepted (`agent_env`) and for what comes with a later release."""
        if self.agent_env:
            raise ApiError(
                "invalid_input",
                "agent_env: not accepted; plain environment belongs in the task's [environment.env].",
                param="agent_env",
            )
        for key in self.verifier_env or {}:
            if key not in JUDGE_ENV_KEYS:
                raise ApiError(
                    "invalid_input",
                    f"verifier_env: only {' and '.join(sorted(JUDGE_ENV_KEYS))} are accepted, not {key}.",
                    param="verifier_env",
                )
        later = {
            "analyze": self.analyze is not None,
            "secrets": bool(self.secrets),
            "system_log": bool(self.system_log),
        }
        for param, is_asked in later.items():
            if is_asked:
                raise ApiError("feature_unsupported", f"{param}: not in this release.", param=param)

    def fingerprint(self) -> str:
        """What an idempotency key is bound to: the request's content, whatever its key order."""
        document = self.model_dump(mode="json", exclude_unset=True)
        return hashlib.sha256(to_json(sorted_keys(document))).hexdigest()


class TimeoutMultipliers(BaseModel):
    """Factors on declared timeouts; a phase without its own takes the global one."""

    model_config = ConfigDict(frozen=True)

    timeout: float = 1.0
    agent: float | None = None
    verifier: float | None = None
    agent_setup: float | None = None
    environment_build: float | None = None

    def of(self, phase: Literal["agent", "verifier", "agent_setup", "environment_build"]) -> float:
        """The factor that a phase's timeout is multiplied by."""
        own: float | None = getattr(self, phase)
        return self.timeout if own is None else own

    def wire(self) -> dict[str, float | None]:
        """The five flat fields of contract §3.6."""
        return {
            "timeout_multiplier": self.timeout,
            "agent_timeout_multiplier": self.agent,
            "verifier_timeout_multiplier": self.verifier,
            "agent_setup_timeout_multiplier": self.agent_setup,
            "environment_build_timeout_multiplier": self.environment_build,
        }


class BuildExclusion(BaseModel):
    """A dataset whose selection lost tasks to failed builds."""

    model_config = ConfigDict(frozen=True)

    dataset: str
    version: str
    n_tasks_ran: int
    n_tasks_selected: int
    failed_task_names: tuple[str, ...]

    def wire(self) -> dict[str, Any]:
        """JobBuildExclusion of contract §3.6."""
        n_failed = len(self.failed_task_names)
        return {
            "dataset": {"name": self.dataset, "version": self.version},
            "n_tasks_ran": self.n_tasks_ran,
            "n_tasks_selected": self.n_tasks_selected,
            "n_tasks_failed_to_build": n_failed,
            "failed_task_names": list(self.failed_task_names),
            "note": exclusion_note(self.n_tasks_ran, self.n_tasks_selected, n_failed),
        }


class DatasetPlan(BaseModel):
    """One dataset version of a job, and how many of its tasks run."""

    model_config = ConfigDict(frozen=True)

    name: str
    version: str
    version_id: str
    n_tasks: int


@dataclass(frozen=True, slots=True)
class TrialSlot:
    """One trial of a plan: `attempt` counts from 1 within its arm and task. `source_trial_id` is the trial of
    another job that it was derived from."""

    index: int
    trial_id: str
    source: str
    version_id: str
    task_name: str
    arm_index: int
    attempt: int
    source_trial_id: str | None = None


class DatasetVersionRef(BaseModel):
    """The dataset version whose tests a regrade runs in place of those that judged first."""

    model_config = ConfigDict(frozen=True)

    name: str
    version: str


class Derivation(BaseModel):
    """What a derived job was made of: trials of another job, chosen one by one."""

    model_config = ConfigDict(frozen=True)

    action: SourceAction
    source_job_id: str
    n_trials: int
    n_spending_trials: int
    """Of them, those that run an agent which calls a model."""
    with_tests: DatasetVersionRef | None = None

    def wire(self) -> dict[str, str]:
        """SourceJob of contract §3.6."""
        return {"action": self.action, "type": "hub", "job_id": self.source_job_id}

    def marks(self) -> dict[str, Any]:
        """What job and trials say beyond the contract: a regrade by changed tests names their version."""
        return {"x_with_tests": self.with_tests.model_dump()} if self.with_tests else {}


class JobPlan(BaseModel):
    """Everything a job runs under, resolved once; stored as JSON and never changed.

    Task names are not in it: they are on the job's trials, and there may be ten thousand. A derived job has
    the arms, versions and policies of its source, and a `derivation`; its datasets count the chosen tasks.
    """

    model_config = ConfigDict(frozen=True)

    job_id: str
    job_name: str
    datasets: tuple[DatasetPlan, ...]
    arms: tuple[AgentArm, ...]
    n_attempts: int
    n_concurrent_trials: int
    max_trial_spend_nanos: int
    sandbox_provider: SandboxProvider
    retry: RetryConfig
    multipliers: TimeoutMultipliers = TimeoutMultipliers()
    build_exclusions: tuple[BuildExclusion, ...] = ()
    verifier_env: dict[str, str] = {}
    """The judge's settings in place of the rubric's (`JUDGE_ENV_KEYS`)."""
    derivation: Derivation | None = None

    @property
    def n_tasks(self) -> int:
        """Tasks over all datasets."""
        return sum(dataset.n_tasks for dataset in self.datasets)

    @property
    def n_trials(self) -> int:
        """Tasks × arms × attempts, or those that a derived job was made of."""
        if self.derivation is not None:
            return self.derivation.n_trials
        return self.n_tasks * len(self.arms) * self.n_attempts

    @property
    def worst_case_spend_nanos(self) -> int:
        """Every trial spending its whole cap on every attempt that the retry policy allows; a trial of an
        agent that calls no model spends nothing."""
        return self.max_trial_spend_nanos * self._n_spending_trials * (self.retry.max_retries + 1)

    @property
    def _n_spending_trials(self) -> int:
        if self.derivation is not None:
            return self.derivation.n_spending_trials
        return self.n_tasks * self.n_attempts * sum(arm.spends for arm in self.arms)

    @property
    def is_regrade(self) -> bool:
        """Its trials run a verifier only."""
        return self.derivation is not None and self.derivation.action == "regrade"

    def evals_keys(self) -> Mapping[tuple[int, str], str]:
        """(arm's position, dataset) → the key of its entry in `stats.evals`."""
        return evals_keys(self.arms, [dataset.name for dataset in self.datasets])


@dataclass(frozen=True)
class PlannedJob:
    """A plan with the names of its tasks, dataset by dataset: what the trials are expanded from."""

    plan: JobPlan
    task_names: tuple[tuple[str, ...], ...]

    def slots(self) -> Iterator[TrialSlot]:
        """Every trial, by index."""
        namespace = UUID(self.plan.job_id)
        rows = (
            (dataset, task_name, arm_index, attempt)
            for dataset, task_names in zip(self.plan.datasets, self.task_names, strict=True)
            for task_name in task_names
            for arm_index in range(len(self.plan.arms))
            for attempt in range(1, self.plan.n_attempts + 1)
        )
        for index, (dataset, task_name, arm_index, attempt) in enumerate(rows):
            yield TrialSlot(
                index=index,
                trial_id=str(uuid5(namespace, str(index))),
                source=dataset.name,
                version_id=dataset.version_id,
                task_name=task_name,
                arm_index=arm_index,
                attempt=attempt,
            )


def trial_id_of(job_id: str, index: int) -> str:
    """UUIDv5(job id, index)."""
    return str(uuid5(UUID(job_id), str(index)))
