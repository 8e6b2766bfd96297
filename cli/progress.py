"""A running job as its events tell it: who runs, what settled, and one line for each thing that happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cli.cells import UNKNOWN, live_phase, number, one_line, reward, text, trial_arm
from cli.client import Json
from cli.events import JobEvent
from domain.events import EventType
from domain.vocabulary import TRIAL_LIVE, TRIAL_TERMINAL, TrialStatus

MESSAGE_CHARS = 200


@dataclass
class RunningTrial:
    """A live trial. Arm, phase and start are known once the trial's row was read."""

    task_name: str
    arm: str = UNKNOWN
    phase: str = UNKNOWN
    started_at: str | None = None


class JobProgress:
    """Fed with events and rows, in any order; a settled trial that is retried is live again."""

    def __init__(self, job: Json) -> None:
        self.job_id = str(job["id"])
        self.total = int(number(job.get("n_total_trials")) or 0)
        self.status = str(job.get("status"))
        self.running: dict[str, RunningTrial] = {}
        self.settled: dict[str, str] = {}
        self.rewards: dict[str, float] = {}

    def apply(self, event: JobEvent) -> str | None:
        """Take an event in; the line that tells it, None for one that needs no line."""
        tell = _TELLERS.get(event.type)
        return None if tell is None else tell(self, event.data)

    def refresh(self, trials: Iterable[Json]) -> None:
        """Take in rows of live trials: their arm, phase and start."""
        for trial in trials:
            known = self.running.get(str(trial.get("id")))
            if known is None or trial.get("status") not in TRIAL_LIVE:
                continue
            known.arm = trial_arm(trial)
            known.phase = live_phase(trial)
            known.started_at = trial.get("started_at")

    @property
    def count(self) -> str:
        """`[ 3/16]`."""
        width = len(str(self.total))
        return f"[{len(self.settled):>{width}}/{self.total}]"

    def _name(self, data: Json) -> str:
        trial_id = str(data.get("trial_id"))
        known = self.running.get(trial_id)
        task = data.get("task_name") or (known.task_name if known else UNKNOWN)
        return f"{task}  {trial_id}"

    def line(self, verb: str, data: Json, *more: str) -> str:
        """The count, what happened, to which trial, and more about it."""
        return one_line("  ".join((self.count, f"{verb:<9}", self._name(data), *more)))


def _created(progress: JobProgress, data: Json) -> str:
    progress.total = int(number(data.get("trial_count")) or progress.total)
    return (
        f"job {progress.job_id}: {progress.total} trials of {text(data.get('task_count'))} tasks "
        f"on {text(data.get('sandbox_provider'))}, {text(data.get('n_concurrent_trials'))} at a time"
    )


def _job_status(status: str) -> Callable[[JobProgress, Json], str]:
    def tell(progress: JobProgress, data: Json) -> str:
        progress.status = status
        return f"{progress.count}  job {status.lower()}"

    return tell


def _running(progress: JobProgress, data: Json) -> str:
    trial_id = str(data.get("trial_id"))
    progress.settled.pop(trial_id, None)
    progress.rewards.pop(trial_id, None)
    progress.running[trial_id] = RunningTrial(task_name=text(data.get("task_name")))
    return progress.line("started", data)


def _scoring(progress: JobProgress, data: Json) -> str:
    known = progress.running.get(str(data.get("trial_id")))
    if known is not None:
        known.phase = "verify"
    return progress.line("scoring", data)


def _settled(progress: JobProgress, data: Json) -> str:
    trial_id, status = str(data.get("trial_id")), text(data.get("status"))
    progress.settled[trial_id] = status
    score = number(data.get("reward"))
    if score is not None:
        progress.rewards[trial_id] = score
    line = progress.line("settled", data, *_verdict(status, data))
    progress.running.pop(trial_id, None)
    return line


def _verdict(status: str, data: Json) -> Iterable[str]:
    yield status
    if "reward" in data:
        yield f"reward {reward(data['reward'])}"
    if status != TrialStatus.SCORED and "exception_type" in data:
        message = str(data.get("exception_message") or "")
        yield (
            f"{data['exception_type']}: {message[:MESSAGE_CHARS]}" if message else str(data["exception_type"])
        )


def _retrying(progress: JobProgress, data: Json) -> str:
    progress.settled.pop(str(data.get("trial_id")), None)
    return progress.line(
        "retrying",
        data,
        f"{text(data.get('retry'))} of {text(data.get('max_retries'))} in {text(data.get('delay_sec'))} s",
        text(data.get("exception_type")),
    )


def _circuit_broken(progress: JobProgress, data: Json) -> str:
    why = f"{text(data.get('consecutive'))} times {text(data.get('signature'))}"
    return progress.line("given up", data, why, f"{text(data.get('retries_unused'))} retries unused")


def _waiting(progress: JobProgress, data: Json) -> str:
    return progress.line("waiting", data, f"for {text(data.get('waiting_for'))}")


_TELLERS: Mapping[str, Callable[[JobProgress, Json], str]] = MappingProxyType(
    {
        EventType.JOB_CREATED: _created,
        EventType.JOB_RUNNING: _job_status("RUNNING"),
        EventType.JOB_CANCELLING: _job_status("CANCELLING"),
        EventType.JOB_CANCELLED: _job_status("CANCELLED"),
        EventType.JOB_COMPLETED: _job_status("COMPLETED"),
        EventType.JOB_FAILED: _job_status("FAILED"),
        EventType.TRIAL_RUNNING: _running,
        EventType.TRIAL_SCORING: _scoring,
        EventType.TRIAL_SETTLED: _settled,
        EventType.TRIAL_RETRYING: _retrying,
        EventType.TRIAL_RETRY_CIRCUIT_BROKEN: _circuit_broken,
        EventType.TRIAL_WAITING: _waiting,
    }
)


def outcome_tally(progress: JobProgress) -> Json:
    """Settled trials by status, statuses in the vocabulary's order."""
    order = [status.value for status in TrialStatus if status in TRIAL_TERMINAL]
    found = list(progress.settled.values())
    return {status: found.count(status) for status in order if status in found}
