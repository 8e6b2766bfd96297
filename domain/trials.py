"""The wire Trial and its parts (contract §3.8): identical on list rows and on a single read.

Phases write parts of `TrialResult`, which the store keeps as one document; `trial_wire` joins it with
the trial's own columns. Every field is sent, null where there is nothing to say.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from domain.arms import AgentArm
from domain.vocabulary import (
    AttemptPhase,
    SandboxProvider,
    SpendSource,
    TrialStatus,
    VerifierEnvironmentMode,
)

# Without look-alikes; 57 ** 7 names, so that trials of one task do not meet.
_NAME_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"

# On list rows; a single read carries the whole message.
LIST_MESSAGE_CHARS = 2000

Document: TypeAlias = dict[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True)


class TimingInfo(_Part):
    """A window as two wire times."""

    started_at: str | None = None
    finished_at: str | None = None


class ExceptionInfo(_Part):
    """Why a trial has no clean verdict; may stand beside a reward."""

    exception_type: str
    exception_message: str | None = None
    exception_traceback: str | None = None
    occurred_at: str


class AgentResult(_Part):
    """What the agent spent; input includes cache. Null is unmeasured."""

    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None
    rollout_details: list[Document] | None = None
    metadata: Document | None = None


class JudgeResult(_Part):
    """What an LLM judge spent."""

    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_usd: float | None = None


class VerifierResult(_Part):
    """The full reward map, or null when the verifier left none."""

    rewards: dict[str, float] | None = None


class UsageReading(_Part):
    """One home's usage; `provisional` until the meter has confirmed it."""

    provisional: bool
    spent_usd: float | None = None
    input_tokens: float | None = None
    cached_input_tokens: float | None = None
    cache_write_tokens: float | None = None
    output_tokens: float | None = None
    as_of: str | None = None


class ProviderDegrade(_Part):
    """A GPU trial that ran elsewhere than its job; dump by alias."""

    from_provider: SandboxProvider = Field(serialization_alias="from")
    to_provider: SandboxProvider = Field(serialization_alias="to")
    reason: str


class StepResult(_Part):
    """One step of a multi-step trial."""

    step_name: str
    agent_result: AgentResult | None = None
    verifier_result: VerifierResult | None = None
    exception_info: ExceptionInfo | None = None
    agent_execution: TimingInfo | None = None
    verifier: TimingInfo | None = None


class TrialRetry(_Part):
    """A retired attempt number, oldest first on the trial."""

    attempt_number: int
    exception_info: ExceptionInfo
    cost_usd: float | None = None
    started_at: str | None = None
    settled_at: str | None = None


class TrialResult(_Part):
    """What the phases of one attempt number leave; the members that are not columns of their own."""

    agent_version: str | None = None
    model_provider: str | None = None
    verifier_result: VerifierResult | None = None
    exception_info: ExceptionInfo | None = None
    agent_result: AgentResult | None = None
    judge_result: JudgeResult | None = None
    environment_setup: TimingInfo | None = None
    agent_setup: TimingInfo | None = None
    agent_execution: TimingInfo | None = None
    verifier: TimingInfo | None = None
    queue_wait: TimingInfo | None = None
    harness_bundle: TimingInfo | None = None
    image_prepare: TimingInfo | None = None
    shared_verify_setup: TimingInfo | None = None
    harness_bundle_cache_hit: bool | None = None
    step_results: list[StepResult] | None = None
    spend_source: SpendSource | None = None
    judge_spend_source: SpendSource | None = None
    live_spent_usd: float | None = None
    live_spend_at: str | None = None
    usage: UsageReading | None = None
    sandbox_provider: SandboxProvider | None = None
    sandbox_provider_degrade: ProviderDegrade | None = None
    gpu_cost: Document | None = None
    verifier_sandbox_id: str | None = None
    verifier_environment_mode: VerifierEnvironmentMode | None = None


class TrialColumns(_Part):
    """A trial's own columns, as the store reads them."""

    id: str
    job_id: str
    task_name: str
    source: str
    attempt: int
    status: TrialStatus
    reward: float | None
    phase: AttemptPhase | None
    n_retries: int
    retries: list[Document]
    sandbox_id: str | None
    has_files: bool
    started_at: datetime | None
    finished_at: datetime | None
    source_trial_id: str | None = None
    evals_key: str | None = None


_RESULT_NULLS: Document = TrialResult().model_dump(mode="json")
_NOT_ON_THE_WIRE = ("agent_version", "model_provider")


def wire_time(at: datetime | None) -> str | None:
    """ISO 8601 in UTC with `Z` and milliseconds; None stays None."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def trial_wire(
    trial: TrialColumns, result: Document, arm: AgentArm, *, max_trial_spend_usd: float, is_list_row: bool
) -> Document:
    """The Trial body. `result` is a stored `TrialResult` document, whole or partial.

    A trial of a derived job says which one it was made of as `x_source_trial_id`. `x_evals_key` is the
    trial's entry in its job's `stats.evals`: it tells arms apart that `agent_info` does not.
    """
    members = {**_RESULT_NULLS, **result}
    agent_version, model_provider = (members.pop(name) for name in _NOT_ON_THE_WIRE)
    if is_list_row:
        members["exception_info"] = _shortened(members["exception_info"])
    return {
        "id": trial.id,
        "job_id": trial.job_id,
        "task_name": trial.task_name,
        "source": trial.source,
        "agent_info": {
            "name": arm.name,
            "version": agent_version,
            "model_info": {"name": arm.model_name, "provider": model_provider},
            "reasoning_effort": arm.reasoning_effort,
        },
        "attempt": trial.attempt,
        "status": trial.status.value,
        "reward": trial.reward,
        **members,
        "analysis": None,
        "newer_analysis": None,
        "max_trial_spend_usd": max_trial_spend_usd,
        "sandbox_id": trial.sandbox_id,
        "attempt_phase": None if trial.phase is None else trial.phase.value,
        "n_retries": trial.n_retries,
        "retries": trial.retries,
        "session_ref": f"/api/trials/{trial.id}/files" if trial.has_files else None,
        "upload": None,
        "started_at": wire_time(trial.started_at),
        "finished_at": wire_time(trial.finished_at),
        **({"x_source_trial_id": trial.source_trial_id} if trial.source_trial_id else {}),
        **({"x_evals_key": trial.evals_key} if trial.evals_key else {}),
    }


def trial_name(task_name: str, trial_id: str) -> str:
    """The trial's folder name: `<task[:32]>__<7 chars>`, the same wherever the trial is written."""
    number, suffix = UUID(trial_id).int, ""
    for _ in range(7):
        number, digit = divmod(number, len(_NAME_ALPHABET))
        suffix += _NAME_ALPHABET[digit]
    return f"{task_name[:32]}__{suffix}"


def _shortened(exception: Document | None) -> Document | None:
    if exception is None or len(exception.get("exception_message") or "") <= LIST_MESSAGE_CHARS:
        return exception
    return {**exception, "exception_message": exception["exception_message"][:LIST_MESSAGE_CHARS]}
