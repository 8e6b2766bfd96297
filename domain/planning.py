"""From a job's request to its plan: versions, tasks, arms, provider resolved or refused (contract §2.7)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from domain.arms import resolve_arms
from domain.errors import ApiError
from domain.jobs import (
    DEFAULT_CONCURRENT_TRIALS,
    DEFAULT_TRIAL_SPEND_USD,
    MAX_TRIALS,
    BuildExclusion,
    DatasetPlan,
    JobCreate,
    JobPlan,
    PlannedJob,
    TimeoutMultipliers,
)
from domain.models import SCRIPTED, route_of
from domain.money import nanos_of_usd
from domain.prices import PriceBook
from domain.retry_policy import RetryConfigInput
from domain.rosters import roster_of
from domain.selection import SelectableTask, TaskSelection, select_tasks
from domain.vocabulary import SandboxProvider

# A declared timeout × its multiplier; contract §5's timer ceiling.
MAX_TIMER_SEC = 2_147_483.647


@dataclass(frozen=True)
class JobRules:
    """What this installation's operator decides about jobs. `upstreams` are the names of model servers
    whose models run on every harness: `scripted` where it is enabled, and those the operator declared."""

    default_trial_spend_usd: float = DEFAULT_TRIAL_SPEND_USD
    upstreams: frozenset[str] = field(default_factory=frozenset[str])


@dataclass(frozen=True)
class Choices:
    """What a plan depends on beside the request: the answers of the store and the operator's rules.

    `registrations`: the caller's own agents by name, as `resolve_arms` takes them. Without `prices` a
    model's price is not asked for.
    """

    default_providers: Sequence[SandboxProvider]
    registrations: Mapping[str, str] = field(default_factory=dict[str, str])
    rules: JobRules = field(default_factory=JobRules)
    prices: PriceBook | None = None


@dataclass(frozen=True)
class VersionTasks:
    """A resolved dataset version with its tasks, as planning needs them. Timeouts are the tasks' own."""

    name: str
    version: str
    version_id: str
    tasks: Sequence[SelectableTask]
    timeouts_sec: Mapping[str, Mapping[str, float]]
    """task name → {"agent": seconds, "verifier": seconds}"""


def plan_job(
    request: JobCreate,
    versions: Sequence[VersionTasks],
    *,
    job_id: str,
    job_name: str,
    choices: Choices,
) -> PlannedJob:
    """The plan of a request. `versions` answers its selectors one to one.

    Raises the refusals of contract §2.7: agents, selection, `provider_unsupported`, `invalid_input`.
    """
    request.refuse_unhonoured()
    rules = choices.rules
    arms = resolve_arms(request.agents, registrations=choices.registrations, upstreams=rules.upstreams)
    _refuse_unpriced(request, choices)
    selections = _select(request, versions)
    provider = _choose_provider(request, selections, choices.default_providers)
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
        max_trial_spend_nanos=nanos_of_usd(request.max_trial_spend_usd or rules.default_trial_spend_usd),
        sandbox_provider=provider,
        retry=(request.retry or RetryConfigInput()).resolve(),
        multipliers=_multipliers(request),
        build_exclusions=tuple(_exclusions(versions, selections)),
        verifier_env=request.verifier_env or {},
    )
    task_names = tuple(tuple(task.name for task in selection.tasks) for selection in selections)
    planned = PlannedJob(plan, task_names)
    _refuse_size(plan)
    _refuse_long_timers(planned, versions)
    return planned


def _refuse_unpriced(request: JobCreate, choices: Choices) -> None:
    """A model without a price is refused by the gateway at its first call: better before anything is made.

    A scripted model's price is its script's.
    """
    for position, agent in enumerate(request.agents):
        route = route_of(agent.model_name or "", choices.rules.upstreams)
        if choices.prices is None or route is None or route.provider == SCRIPTED:
            continue
        if not roster_of(agent.name).needs_model:
            continue
        if choices.prices.price(route.provider, route.upstream_model) is None:
            path = f"agents[{position}].model_name"
            message = (
                f"{path}: the price of {agent.model_name} is not known, so its calls would be refused; "
                f"state it with `evolve admin price set {route.provider} {route.upstream_model}`."
            )
            details = {"provider": route.provider, "model": route.upstream_model}
            raise ApiError("invalid_input", message, param=path, details=details)


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
