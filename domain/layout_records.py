"""The records of a downloaded job and its trials: config, lock and result documents (contract §8.1, §8.2).

Shapes are those of Harbor 0.26, whose own models read them; a member that Harbor has no place for stands
under `x_evolve` (and `x_reasoning_effort`, `x_preset` on an agent), with the name it has on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from domain.arms import AgentArm
from domain.jobs import JobPlan
from domain.money import usd_of_nanos
from domain.stats import GroupSums, JobTotals
from domain.trials import Document, TrialColumns, trial_name, trial_wire, wire_time
from domain.vocabulary import JobStatus, SandboxProvider, SpendSource

# Versions of Harbor's document formats.
CONFIG_SCHEMA, RESULT_SCHEMA, TRIAL_LOCK_SCHEMA, JOB_LOCK_SCHEMA = 1, 1, 2, 3

_HARBOR_STATS = (
    "n_completed_trials",
    "n_errored_trials",
    "n_running_trials",
    "n_pending_trials",
    "n_cancelled_trials",
    "n_retries",
    "evals",
    "n_input_tokens",
    "n_cache_tokens",
    "n_output_tokens",
    "cost_usd",
)
_HARBOR_WINDOWS = ("environment_setup", "agent_setup", "agent_execution", "verifier")
OUR_WINDOWS = ("queue_wait", "harness_bundle", "image_prepare", "shared_verify_setup")
_PLATFORM_MEMBERS = (
    "status",
    "reward",
    "attempt",
    "judge_result",
    "judge_spend_source",
    *OUR_WINDOWS,
    "harness_bundle_cache_hit",
    "usage",
    "max_trial_spend_usd",
    "sandbox_provider",
    "sandbox_provider_degrade",
    "sandbox_id",
    "verifier_sandbox_id",
    "gpu_cost",
    "n_retries",
    "retries",
)


@dataclass(frozen=True)
class DownloadedTask:
    """The task of a trial: its digest (`sha256:…`) and its declared artifacts, (source, destination)."""

    dataset_version: str | None
    digest: str | None
    artifacts: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class DownloadedTrial:
    """A settled trial. `result` is its stored `TrialResult` document with our own `x_` members."""

    columns: TrialColumns
    attempt_number: int
    arm: AgentArm
    evals_key: str
    result: Document
    task: DownloadedTask

    @property
    def name(self) -> str:
        """Its folder's name."""
        return trial_name(self.columns.task_name, self.columns.id)

    @property
    def rewards(self) -> dict[str, float] | None:
        """The rewards map, None where there was no verdict."""
        verdict: Document | None = self.result.get("verifier_result")
        return None if verdict is None else verdict["rewards"]


@dataclass(frozen=True)
class JobGroupSums:
    """One entry of `stats.evals` as it is stored."""

    sums: GroupSums
    pass_at_k: Mapping[str, float]


@dataclass(frozen=True)
class DownloadedJob:
    """A terminal job with its materialised statistics."""

    plan: JobPlan
    org: str
    status: JobStatus
    by_status: Mapping[str, int]
    totals: JobTotals
    groups: Mapping[str, JobGroupSums]
    """By evals key."""
    started_at: datetime
    updated_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True)
class TrialVerdict:
    """What `stats.evals` lists of one trial."""

    name: str
    evals_key: str
    rewards: Mapping[str, float] | None
    exception_type: str | None


def verdict_of(trial: DownloadedTrial) -> TrialVerdict:
    """The trial as `job_result` lists it."""
    exception = trial.result.get("exception_info")
    return TrialVerdict(
        name=trial.name,
        evals_key=trial.evals_key,
        rewards=trial.rewards,
        exception_type=exception["exception_type"] if exception else None,
    )


def job_config(job: DownloadedJob) -> Document:
    """`config.json` of a job."""
    plan = job.plan
    return {
        "schema_version": CONFIG_SCHEMA,
        "job_name": plan.job_name,
        "n_attempts": plan.n_attempts,
        **plan.multipliers.wire(),
        "n_concurrent_trials": plan.n_concurrent_trials,
        "retry": plan.retry.model_dump(mode="json"),
        "environment": _environment(plan.sandbox_provider),
        "agents": [_agent(arm) for arm in plan.arms],
        "datasets": [{"name": dataset.name, "version": dataset.version} for dataset in plan.datasets],
        "tasks": [],
        "x_evolve": {
            "job_id": plan.job_id,
            "org": job.org,
            "sandbox_provider": plan.sandbox_provider.value,
            "base_image_replaced": _is_base_image_replaced(plan),
            "max_trial_spend_usd": usd_of_nanos(plan.max_trial_spend_nanos),
            "worst_case_spend_usd": usd_of_nanos(plan.worst_case_spend_nanos),
            "datasets": [dataset.model_dump(mode="json") for dataset in plan.datasets],
            "build_exclusions": [exclusion.wire() for exclusion in plan.build_exclusions],
            **_provenance(plan),
        },
    }


def _provenance(plan: JobPlan) -> Document:
    """What a derived job was made of, in the API's words."""
    derivation = plan.derivation
    return {"source_jobs": [derivation.wire()], **derivation.marks()} if derivation else {}


def job_lock(job: DownloadedJob, trial_locks: Sequence[Document]) -> Document:
    """`lock.json` of a job: what its trials resolved to, each as in its own folder."""
    return {
        "schema_version": JOB_LOCK_SCHEMA,
        "created_at": wire_time(job.started_at),
        "harbor": {},
        "n_concurrent_trials": job.plan.n_concurrent_trials,
        "retry": job.plan.retry.model_dump(mode="json"),
        "trials": list(trial_locks),
    }


def job_result(job: DownloadedJob, verdicts: Iterable[TrialVerdict]) -> Document:
    """`result.json` of a job: the statistics that the API answers, but lists name trials by folder."""
    wire = job.totals.wire(job.by_status, _evals(job, verdicts))
    platform = {name: value for name, value in wire.items() if name not in _HARBOR_STATS}
    return {
        "schema_version": RESULT_SCHEMA,
        "id": job.plan.job_id,
        "started_at": wire_time(job.started_at),
        "updated_at": wire_time(job.updated_at),
        "finished_at": wire_time(job.finished_at),
        "n_total_trials": job.plan.n_trials,
        "stats": {name: wire[name] for name in _HARBOR_STATS},
        "x_evolve": {
            "status": job.status.value,
            "by_status": dict(job.by_status),
            "base_image_replaced": _is_base_image_replaced(job.plan),
            **platform,
        },
    }


def trial_config(plan: JobPlan, trial: DownloadedTrial) -> Document:
    """`config.json` of a trial."""
    columns = trial.columns
    return {
        "schema_version": CONFIG_SCHEMA,
        "task": {"path": _task_path(trial), "source": columns.source},
        "trial_name": trial.name,
        **plan.multipliers.wire(),
        "agent": _agent(trial.arm),
        "environment": _environment(plan.sandbox_provider),
        "job_id": columns.job_id,
        "x_evolve": {
            "dataset": {"name": columns.source, "version": trial.task.dataset_version},
            "attempt": columns.attempt,
            "max_trial_spend_usd": usd_of_nanos(plan.max_trial_spend_nanos),
        },
    }


def trial_lock(plan: JobPlan, trial: DownloadedTrial) -> Document | None:
    """`lock.json` of a trial; None where its task has no digest, which the format demands."""
    if trial.task.digest is None:
        return None
    columns = trial.columns
    return {
        "schema_version": TRIAL_LOCK_SCHEMA,
        "task": {
            "name": columns.task_name,
            "type": "local",
            "digest": trial.task.digest,
            "source": columns.source,
            "path": _task_path(trial),
        },
        **plan.multipliers.wire(),
        "agent": _agent(trial.arm),
        "skills": [],
        "environment": _environment(plan.sandbox_provider),
        "verifier": {"environment_mode": trial.result.get("verifier_environment_mode")},
        "x_evolve": {
            "dataset": {"name": columns.source, "version": trial.task.dataset_version},
            "image": trial.result.get("x_image"),
        },
    }


def trial_result(plan: JobPlan, trial: DownloadedTrial, left_out: Sequence[str] = ()) -> Document:
    """`result.json` of a trial. `left_out` says of each file that could not be carried which and why."""
    wire = _wire(plan, trial)
    columns, digest = trial.columns, trial.task.digest
    return {
        "schema_version": RESULT_SCHEMA,
        "id": columns.id,
        "task_name": columns.task_name,
        "trial_name": trial.name,
        "trial_uri": f"urn:uuid:{columns.id}",
        "task_id": {"path": _task_path(trial)},
        "source": columns.source,
        "task_checksum": (digest or "").removeprefix("sha256:"),
        "config": trial_config(plan, trial),
        "agent_info": _agent_info(wire["agent_info"]),
        "agent_result": _agent_result(wire),
        "verifier_result": wire["verifier_result"],
        "verifier_environment_mode": wire["verifier_environment_mode"],
        "exception_info": _exception_info(wire["exception_info"]),
        "started_at": wire["started_at"],
        "finished_at": wire["finished_at"],
        **{name: wire[name] for name in _HARBOR_WINDOWS},
        "step_results": wire["step_results"],
        "x_evolve": {
            "spentUsd": _spent_usd(wire),
            "spendSource": wire["spend_source"],
            **{name: wire[name] for name in _PLATFORM_MEMBERS},
            "attempt_number": trial.attempt_number,
            "reasoning_effort": trial.arm.reasoning_effort,
            "image": trial.result.get("x_image"),
            "base_image_replaced": _is_base_image_replaced(plan),
            "left_out": [*trial.result.get("x_left_out", ()), *left_out],
        },
    }


def windows(plan: JobPlan, trial: DownloadedTrial) -> list[tuple[str, str | None, str | None]]:
    """The trial's timed phases that are known: name, start and end as wire times."""
    wire = _wire(plan, trial)
    known = [(name, wire[name]) for name in (*OUR_WINDOWS, *_HARBOR_WINDOWS) if wire[name]]
    return [(name, window["started_at"], window["finished_at"]) for name, window in known]


def _wire(plan: JobPlan, trial: DownloadedTrial) -> Document:
    """The API's body of the trial."""
    cap_usd = usd_of_nanos(plan.max_trial_spend_nanos)
    wire = trial_wire(trial.columns, trial.result, trial.arm, max_trial_spend_usd=cap_usd, is_list_row=False)
    if wire["sandbox_provider"] is None and trial.columns.sandbox_id is not None:
        wire["sandbox_provider"] = plan.sandbox_provider.value
    return wire


def _evals(job: DownloadedJob, verdicts: Iterable[TrialVerdict]) -> Document:
    evals: dict[str, Any] = {
        key: {**group.sums.wire(group.pass_at_k), "reward_stats": {}, "exception_stats": {}}
        for key, group in job.groups.items()
    }
    for verdict in verdicts:
        entry = evals[verdict.evals_key]
        for name, value in (verdict.rewards or {}).items():
            # As Python and Harbor write floats in a JSON object's key: `1.0`, `0.5`.
            entry["reward_stats"].setdefault(name, {}).setdefault(repr(float(value)), []).append(verdict.name)
        if verdict.exception_type is not None:
            entry["exception_stats"].setdefault(verdict.exception_type, []).append(verdict.name)
    return evals


def _environment(provider: SandboxProvider) -> Document:
    """Harbor knows no `local`: it is named as somebody else's environment, never passed off as docker."""
    if provider is SandboxProvider.LOCAL:
        return {"import_path": "x_evolve:local"}
    return {"type": provider.value}


def _is_base_image_replaced(plan: JobPlan) -> bool:
    return plan.sandbox_provider is SandboxProvider.LOCAL


def _agent(arm: AgentArm) -> Document:
    return {
        "name": arm.name,
        "model_name": arm.model_name,
        "skills": list(arm.skills),
        "kwargs": arm.kwargs or {},
        "x_reasoning_effort": arm.reasoning_effort,
        "x_preset": arm.preset,
        "x_evolve": {"version": arm.version},
    }


def _task_path(trial: DownloadedTrial) -> str:
    """Where a Harbor user would have the task: below a folder named after its dataset."""
    return f"{trial.columns.source}/{trial.columns.task_name}"


def _agent_info(info: Document) -> Document:
    """Harbor wants a version in every case, and no model where there is none."""
    model = info["model_info"]
    return {
        "name": info["name"],
        "version": info["version"] or "unknown",
        "model_info": model if model["name"] is not None else None,
    }


def _agent_result(wire: Document) -> Document | None:
    """The cost is stated only once it is final."""
    result = wire["agent_result"]
    if result is None or wire["spend_source"] == SpendSource.MEASURED:
        return result
    return {**result, "cost_usd": None}


def _exception_info(exception: Document | None) -> Document | None:
    """Harbor wants texts where the wire may say null."""
    if exception is None:
        return None
    texts = ("exception_message", "exception_traceback")
    return {**exception, **{name: exception.get(name) or "" for name in texts}}


def _spent_usd(wire: Document) -> float | None:
    """What agent and judge spent as far as it is known; None is unmeasured."""
    lanes = (wire["agent_result"], wire["judge_result"])
    known = [lane["cost_usd"] for lane in lanes if lane is not None and lane["cost_usd"] is not None]
    return sum(known) if known else wire["live_spent_usd"]
