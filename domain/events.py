"""The job stream's events, payload by payload (contract §4.4; `trial.waiting` is ours).

Each event carries a `key` that is unique in its job: appending the same key again is a no-op, so an
activity that is tried twice tells its story once.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from domain.jobs import JobPlan
from domain.money import usd_of_nanos
from domain.vocabulary import AttemptPhase, InfraFailureSignature, TrialStatus


class EventType(StrEnum):
    JOB_CREATED = "job.created"
    JOB_RUNNING = "job.running"
    JOB_CANCELLING = "job.cancelling"
    JOB_CANCELLED = "job.cancelled"
    JOB_COMPLETED = "job.completed"
    JOB_FAILED = "job.failed"
    TRIAL_RUNNING = "trial.running"
    TRIAL_SCORING = "trial.scoring"
    TRIAL_SPEND = "trial.spend"
    TRIAL_SETTLED = "trial.settled"
    TRIAL_RETRYING = "trial.retrying"
    TRIAL_RETRY_CIRCUIT_BROKEN = "trial.retry_circuit_broken"
    TRIAL_WAITING = "trial.waiting"
    """Beyond the contract's: its clients pass on what they do not know."""


TERMINAL_EVENTS = frozenset({EventType.JOB_COMPLETED, EventType.JOB_CANCELLED, EventType.JOB_FAILED})


class NewEvent(BaseModel):
    """An event before it has a sequence number."""

    model_config = ConfigDict(frozen=True)

    type: EventType
    data: dict[str, Any]
    key: str


class TrialName(BaseModel):
    """Which trial an event is about, and which of its attempt numbers."""

    model_config = ConfigDict(frozen=True)

    trial_id: str
    task_name: str
    attempt_number: int = 1


def job_created(plan: JobPlan) -> NewEvent:
    """First of every job."""
    data = {
        "datasets": [{"name": dataset.name, "version": dataset.version} for dataset in plan.datasets],
        "task_count": plan.n_tasks,
        "agents": [
            {
                "name": arm.name,
                "model_name": arm.model_name,
                "version": arm.version,
                "reasoning_effort": arm.reasoning_effort,
            }
            for arm in plan.arms
        ],
        "n_attempts": plan.n_attempts,
        "n_concurrent_trials": plan.n_concurrent_trials,
        "max_trial_spend_usd": usd_of_nanos(plan.max_trial_spend_nanos),
        "sandbox_provider": plan.sandbox_provider.value,
        "trial_count": plan.n_trials,
        "retry": plan.retry.model_dump(mode="json"),
        **plan.multipliers.wire(),
    }
    return _job_event(EventType.JOB_CREATED, data)


def job_running(job_id: str) -> NewEvent:
    """The first trial is about to start."""
    return _job_event(EventType.JOB_RUNNING, {"job_id": job_id})


def job_cancelling(job_id: str, *, cancelled_trials: int, active_trials: int) -> NewEvent:
    """A cancel was accepted: `active_trials` are still to be killed."""
    data = {"job_id": job_id, "cancelled_trials": cancelled_trials, "active_trials": active_trials}
    return _job_event(EventType.JOB_CANCELLING, data)


def job_cancelled(job_id: str, *, cancelled_trials: int) -> NewEvent:
    """Terminal."""
    return _job_event(EventType.JOB_CANCELLED, {"job_id": job_id, "cancelled_trials": cancelled_trials})


def job_completed(job_id: str) -> NewEvent:
    """Terminal: every trial settled, whatever the outcomes."""
    return _job_event(EventType.JOB_COMPLETED, {"job_id": job_id})


def trial_running(trial: TrialName) -> NewEvent:
    """An attempt number has begun."""
    return _trial_event(
        EventType.TRIAL_RUNNING, trial, {"trial_id": trial.trial_id, "task_name": trial.task_name}
    )


def trial_scoring(trial: TrialName, *, captured_bytes: int | None = None) -> NewEvent:
    """The agent is over and the verifier starts."""
    data: dict[str, Any] = {"trial_id": trial.trial_id}
    if captured_bytes is not None:
        data["captured_bytes"] = captured_bytes
    return _trial_event(EventType.TRIAL_SCORING, trial, data)


def trial_settled(
    trial: TrialName,
    status: TrialStatus,
    *,
    reward: float | None = None,
    exception: tuple[str, str | None] | None = None,
    attempt_phase: AttemptPhase | None = None,
) -> NewEvent:
    """An attempt number has its status. `exception` is its type and message; no reward key = no score."""
    data: dict[str, Any] = {
        "trial_id": trial.trial_id,
        "task_name": trial.task_name,
        "status": status.value,
    }
    if reward is not None:
        data["reward"] = reward
    if exception is not None:
        data["exception_type"] = exception[0]
        if exception[1] is not None:
            data["exception_message"] = exception[1]
    if attempt_phase is not None:
        data["attempt_phase"] = attempt_phase.value
    return _trial_event(EventType.TRIAL_SETTLED, trial, data)


def trial_waiting(trial: TrialName, *, waiting_for: str, since: str) -> NewEvent:
    """A wait for room or for the provider's capacity begins; once a wait."""
    data = {
        "trial_id": trial.trial_id,
        "task_name": trial.task_name,
        "waiting_for": waiting_for,
        "since": since,
    }
    return _trial_event(EventType.TRIAL_WAITING, trial, data, suffix=f"/{since}")


class SpendReading(BaseModel):
    """A running trial's spend so far: a lower bound that only climbs."""

    model_config = ConfigDict(frozen=True)

    live_spent_nanos: int
    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None


def trial_spend(trial: TrialName, reading: SpendReading) -> NewEvent:
    """About every 30 s while the agent spends; one event a reading."""
    data: dict[str, Any] = {
        "trial_id": trial.trial_id,
        "task_name": trial.task_name,
        "live_spent_usd": usd_of_nanos(reading.live_spent_nanos),
    }
    tokens = reading.model_dump(include={"n_input_tokens", "n_cache_tokens", "n_output_tokens"})
    data.update({name: count for name, count in tokens.items() if count is not None})
    return _trial_event(EventType.TRIAL_SPEND, trial, data, suffix=f"/{reading.live_spent_nanos}")


def trial_retrying(trial: TrialName, *, max_retries: int, delay_sec: float, exception_type: str) -> NewEvent:
    """Follows the settle it retries; `retry` counts from 1."""
    data = {
        "trial_id": trial.trial_id,
        "task_name": trial.task_name,
        "retry": trial.attempt_number,
        "max_retries": max_retries,
        "delay_sec": delay_sec,
        "exception_type": exception_type,
    }
    return _trial_event(EventType.TRIAL_RETRYING, trial, data)


class BrokenCircuit(BaseModel):
    """Why retries stopped early: `consecutive` failures of one `signature`."""

    model_config = ConfigDict(frozen=True)

    signature: InfraFailureSignature
    consecutive: int
    failure_phase: str
    max_retries: int
    retries_unused: int
    exception_message: str | None


def trial_retry_circuit_broken(trial: TrialName, circuit: BrokenCircuit) -> NewEvent:
    """Follows the settle, instead of `trial.retrying`."""
    data = {"trial_id": trial.trial_id, "task_name": trial.task_name, **circuit.model_dump(mode="json")}
    return _trial_event(EventType.TRIAL_RETRY_CIRCUIT_BROKEN, trial, data)


def _job_event(event_type: EventType, data: dict[str, Any]) -> NewEvent:
    return NewEvent(type=event_type, data=data, key=event_type.value)


def _trial_event(
    event_type: EventType, trial: TrialName, data: dict[str, Any], *, suffix: str = ""
) -> NewEvent:
    key = f"{event_type.value}/{trial.trial_id}/{trial.attempt_number}{suffix}"
    return NewEvent(type=event_type, data=data, key=key)
