"""A job: what a request may say, and the plan it resolves to (contract §3.7, §6.1).

A plan fixes everything that decides what runs: dataset versions, tasks, arms, attempts, the policy.
Its trials are numbered datasets → tasks → arms → attempts, and a trial's id follows from its number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import UUID, uuid5

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from domain.arms import AgentArm, AgentArmInput, resolve_arms
from domain.errors import ApiError
from domain.money import nanos_of_usd
from domain.requests import RequestModel, sorted_keys
from domain.retry_policy import RetryConfig, RetryConfigInput
from domain.selection import SelectableTask, TaskFilter, TaskSelection, exclusion_note, select_tasks
from domain.vocabulary import SandboxProvider

DEFAULT_CONCURRENT_TRIALS = 4
MAX_CONCURRENT_TRIALS = 150
MAX_ATTEMPTS = 1000
MAX_TRIALS = 10_000
DEFAULT_TRIAL_SPEND_USD = 200.0
# Keeps a job's worst case (cap × trials × (retries + 1)) within 64 bits of nano-dollars.
MAX_TRIAL_SPEND_USD = 50_000.0
# A declared timeout × its multiplier; contract §5's timer ceiling.
MAX_TIMER_SEC = 2_147_483.647
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
            "verifier_env": bool(self.verifier_env),
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
    """One trial of a plan: `attempt` counts from 1 within its arm and task."""

    index: int
    trial_id: str
    source: str
    version_id: str
    task_name: str
    arm_index: int
    attempt: int


class JobPlan(BaseModel):
    """Everything a job runs under, resolved once; stored as JSON and never changed.

    Task names are not in it: they are on the job's trials, and there may be ten thousand.
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

    @property
    def n_tasks(self) -> int:
        """Tasks over all datasets."""
        return sum(dataset.n_tasks for dataset in self.datasets)

    @property
    def n_trials(self) -> int:
        """Tasks × arms × attempts."""
        return self.n_tasks * len(self.arms) * self.n_attempts

    @property
    def worst_case_spend_nanos(self) -> int:
        """Every trial spending its whole cap on every attempt that the retry policy allows."""
        return self.max_trial_spend_nanos * self.n_trials * (self.retry.max_retries + 1)


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


@dataclass(frozen=True)
class VersionTasks:
    """A resolved dataset version with its tasks, as planning needs them. Timeouts are the tasks' own."""

    name: str
    version: str
    version_id: str
    tasks: Sequence[SelectableTask]
    timeouts_sec: Mapping[str, Mapping[str, float]]
    """task name → {"agent": seconds, "verifier": seconds}"""


def trial_id_of(job_id: str, index: int) -> str:
    """UUIDv5(job id, index)."""
    return str(uuid5(UUID(job_id), str(index)))


def plan_job(
    request: JobCreate,
    versions: Sequence[VersionTasks],
    *,
    job_id: str,
    job_name: str,
    default_providers: Sequence[SandboxProvider],
) -> PlannedJob:
    """The plan of a request. `versions` answers its selectors one to one.

    Raises the refusals of contract §2.7: agents, selection, `provider_unsupported`, `invalid_input`.
    """
    request.refuse_unhonoured()
    arms = resolve_arms(request.agents)
    selections = _select(request, versions)
    provider = _choose_provider(request, selections, default_providers)
    _refuse_provider(versions, selections, provider)
    plan = JobPlan(
        job_id=job_id,
        job_name=job_name,
        datasets=tuple(
            DatasetPlan(
                name=version.name,
                version=version.version,
                version_id=version.version_id,
                n_tasks=len(selection.tasks),
            )
            for version, selection in zip(versions, selections, strict=True)
        ),
        arms=arms,
        n_attempts=request.n_attempts or 1,
        n_concurrent_trials=request.n_concurrent_trials or DEFAULT_CONCURRENT_TRIALS,
        max_trial_spend_nanos=nanos_of_usd(request.max_trial_spend_usd or DEFAULT_TRIAL_SPEND_USD),
        sandbox_provider=provider,
        retry=(request.retry or RetryConfigInput()).resolve(),
        multipliers=_multipliers(request),
        build_exclusions=tuple(_exclusions(versions, selections)),
    )
    task_names = tuple(tuple(task.name for task in selection.tasks) for selection in selections)
    planned = PlannedJob(plan, task_names)
    _refuse_size(plan)
    _refuse_long_timers(planned, versions)
    return planned


def _select(request: JobCreate, versions: Sequence[VersionTasks]) -> list[TaskSelection]:
    seen: set[str] = set()
    selections: list[TaskSelection] = []
    for position, (selector, version) in enumerate(zip(request.datasets, versions, strict=True)):
        param = f"datasets[{position}]"
        if version.name in seen:
            message = f"{param}.name: {version.name} is named twice; one selector a dataset."
            raise ApiError("invalid_input", message, param=f"{param}.name")
        seen.add(version.name)
        selections.append(select_tasks(version.tasks, selector.task_filter(), param=param))
    return selections


def _choose_provider(
    request: JobCreate, selections: Sequence[TaskSelection], defaults: Sequence[SandboxProvider]
) -> SandboxProvider:
    """The one asked for; else the first default that accepts every selected task, else the first."""
    if request.sandbox_provider is not None:
        return SandboxProvider(request.sandbox_provider)
    tasks = [task for selection in selections for task in selection.tasks]
    accepting = (p for p in defaults if not any(p in task.refusals for task in tasks))
    return next(accepting, defaults[0])


def _refuse_provider(
    versions: Sequence[VersionTasks], selections: Sequence[TaskSelection], provider: SandboxProvider
) -> None:
    refused = [
        {"dataset": version.name, "task_name": task.name, "reason": task.refusals[provider]}
        for version, selection in zip(versions, selections, strict=True)
        for task in selection.tasks
        if provider in task.refusals
    ]
    if refused:
        first = refused[0]
        raise ApiError(
            "provider_unsupported",
            f"{len(refused)} selected task(s) cannot run on {provider}: "
            f"{first['task_name']}: {first['reason']}",
            param="sandbox_provider",
            details={"refused_tasks": refused},
        )


def _refuse_size(plan: JobPlan) -> None:
    if plan.n_trials > MAX_TRIALS:
        raise ApiError(
            "invalid_input",
            f"{plan.n_tasks} tasks × {len(plan.arms)} arms × {plan.n_attempts} attempts are "
            f"{plan.n_trials} trials; a job holds at most {MAX_TRIALS}.",
            param="n_attempts" if plan.n_attempts > 1 else "datasets",
            details={"n_trials": plan.n_trials, "max_trials": MAX_TRIALS},
        )


def _refuse_long_timers(planned: PlannedJob, versions: Sequence[VersionTasks]) -> None:
    for version, task_names in zip(versions, planned.task_names, strict=True):
        for task_name in task_names:
            declared = version.timeouts_sec.get(task_name, {})
            _refuse_long_timer(planned.plan.multipliers, task_name, "agent", declared)
            _refuse_long_timer(planned.plan.multipliers, task_name, "verifier", declared)


def _refuse_long_timer(
    multipliers: TimeoutMultipliers,
    task_name: str,
    phase: Literal["agent", "verifier"],
    declared_sec: Mapping[str, float],
) -> None:
    timeout_sec, factor = declared_sec.get(phase, 0.0), multipliers.of(phase)
    if timeout_sec * factor <= MAX_TIMER_SEC:
        return
    param = _multiplier_param(multipliers, phase)
    raise ApiError(
        "invalid_input",
        f"{param}: {task_name}'s {phase} timeout of {timeout_sec} s × {factor} is past the ceiling of "
        f"{MAX_TIMER_SEC} s.",
        param=param,
    )


def _multiplier_param(multipliers: TimeoutMultipliers, phase: Literal["agent", "verifier"]) -> str:
    own = multipliers.agent if phase == "agent" else multipliers.verifier
    return "timeout_multiplier" if own is None else f"{phase}_timeout_multiplier"


def _multipliers(request: JobCreate) -> TimeoutMultipliers:
    return TimeoutMultipliers(
        timeout=request.timeout_multiplier or 1.0,
        agent=request.agent_timeout_multiplier,
        verifier=request.verifier_timeout_multiplier,
        agent_setup=request.agent_setup_timeout_multiplier,
        environment_build=request.environment_build_timeout_multiplier,
    )


def _exclusions(
    versions: Sequence[VersionTasks], selections: Sequence[TaskSelection]
) -> Iterator[BuildExclusion]:
    for version, selection in zip(versions, selections, strict=True):
        if selection.failed:
            yield BuildExclusion(
                dataset=version.name,
                version=version.version,
                n_tasks_ran=len(selection.tasks),
                n_tasks_selected=selection.n_matched,
                failed_task_names=selection.failed,
            )
