"""The folders of a download (contract §8.1, §8.2): which files stand where, and the texts among them.

Pure and deterministic: the same stored data renders to the same bytes. What a trial's processes left is
not in here: its kept files are laid at their own paths (`kept_names`), and a file that was never
produced is absent, never empty.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from domain.jobs import JobPlan
from domain.layout_records import (
    DownloadedJob,
    DownloadedTrial,
    TrialVerdict,
    job_config,
    job_lock,
    job_result,
    trial_config,
    trial_lock,
    trial_result,
    windows,
)
from domain.trials import Document, wire_time

ARTIFACTS = "artifacts/"
ARTIFACT_MANIFEST = "artifacts/manifest.json"
REWARD_JSON = "verifier/reward.json"
TRACE = "agent/trace-parsed.jsonl"
JOB_LOG = "job.log"
# Written by us in every folder: a kept file of that name gives way.
_RESERVED = frozenset(
    {"config.json", "lock.json", "result.json", "trial.log", "exception.txt", ARTIFACT_MANIFEST, TRACE}
)


@dataclass(frozen=True)
class LoggedEvent:
    """An event of the job stream, for the logs."""

    at: datetime
    type: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class KeptNames:
    """Which kept paths are laid, and of each other one why not."""

    laid: tuple[str, ...]
    left_out: tuple[str, ...]


def job_folder(job_id: str) -> str:
    """The one folder of a job's archive."""
    return f"job-{job_id}"


def job_records(
    job: DownloadedJob, verdicts: Iterable[TrialVerdict], trial_locks: Sequence[Document]
) -> dict[str, bytes]:
    """The records at the root of a job's folder, without its log."""
    return {
        "config.json": _document(job_config(job)),
        "lock.json": _document(job_lock(job, trial_locks)),
        "result.json": _document(job_result(job, verdicts)),
    }


def trial_records(
    plan: JobPlan, trial: DownloadedTrial, kept: KeptNames, events: Iterable[LoggedEvent]
) -> dict[str, bytes]:
    """Every file of a trial's folder that is rendered from its record, by path in the folder."""
    lock, rewards = trial_lock(plan, trial), trial.rewards
    manifest = artifact_manifest(trial, kept.laid)
    exception = trial.result.get("exception_info")
    files: dict[str, bytes | None] = {
        "config.json": _document(trial_config(plan, trial)),
        "lock.json": None if lock is None else _document(lock),
        "result.json": _document(trial_result(plan, trial, kept.left_out)),
        "trial.log": trial_log(plan, trial, events),
        "exception.txt": None if exception is None else exception_text(exception),
        # The verifier's own bytes, where it wrote any, are among the kept files.
        REWARD_JSON: None if rewards is None or REWARD_JSON in kept.laid else _document(rewards),
        ARTIFACT_MANIFEST: _document(manifest) if manifest else None,
        **_step_rewards(trial, kept),
    }
    return {name: content for name, content in files.items() if content is not None}


def _step_rewards(trial: DownloadedTrial, kept: KeptNames) -> dict[str, bytes]:
    """`steps/<name>/verifier/reward.json` of each step that was scored and whose verifier wrote none."""
    scored = {
        f"steps/{step['step_name']}/{REWARD_JSON}": step["verifier_result"]["rewards"]
        for step in trial.result.get("step_results") or ()
        if step["verifier_result"] is not None
    }
    return {path: _document(rewards) for path, rewards in scored.items() if path not in kept.laid}


def kept_names(paths: Collection[str]) -> KeptNames:
    """Sort out kept paths that cannot stand in a folder: those of our own records, and those below a file."""
    known, laid, left_out = frozenset(paths), list[str](), list[str]()
    for path in sorted(known):
        parent = next((folder for folder in _folders(path) if folder in known), None)
        if path in _RESERVED:
            left_out.append(f"{path}: the name of a record")
        elif parent is not None:
            left_out.append(f"{path}: {parent} is a file")
        else:
            laid.append(path)
    return KeptNames(tuple(laid), tuple(left_out))


def artifact_manifest(trial: DownloadedTrial, laid: Iterable[str]) -> list[Document]:
    """`artifacts/manifest.json`: each collected file with the path it had in the box."""
    declared = [(destination, source) for source, destination in trial.task.artifacts if destination]
    return [
        {
            "source": _artifact_source(path.removeprefix(ARTIFACTS), declared),
            "destination": path,
            "type": "file",
            "status": "ok",
        }
        for path in laid
        if path.startswith(ARTIFACTS)
    ]


def log_line(event: LoggedEvent) -> bytes:
    """One event as a line of `job.log`."""
    return _line(event.at, event.type, event.data)


def trial_log(plan: JobPlan, trial: DownloadedTrial, events: Iterable[LoggedEvent]) -> bytes:
    """The trial's events and the beginnings and ends of its phases, in the order of time."""
    lines = [(event.at, _line(event.at, event.type, event.data)) for event in events]
    for name, started_at, finished_at in windows(plan, trial):
        for at, word in ((started_at, "started"), (finished_at, "finished")):
            if at is not None:
                moment = datetime.fromisoformat(at)
                lines.append((moment, _line(moment, f"{name} {word}")))
    return b"".join(line for _, line in sorted(lines, key=lambda entry: entry[0]))


def exception_text(exception: Document) -> bytes:
    """`exception.txt`: the traceback where there is one, then type and message."""
    said = (exception["exception_type"], exception.get("exception_message"))
    texts = (exception.get("exception_traceback"), ": ".join(text for text in said if text))
    return "".join(f"{text}\n" for text in texts if text).encode()


def trace_line(event: Mapping[str, Any]) -> bytes:
    """One parsed event (`seq`, `type`, `data`) as a line of `agent/trace-parsed.jsonl`."""
    line = {name: event[name] for name in ("seq", "type", "data")}
    return to_json(line, inf_nan_mode="null") + b"\n"


def _folders(path: str) -> Iterable[str]:
    parts = path.split("/")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _artifact_source(path: str, declared: Sequence[tuple[str, str]]) -> str:
    """Where the box had it: its full path, but for artifacts that a task sends to a destination."""
    for destination, source in declared:
        if path == destination:
            return source
        folder = destination.rstrip("/") + "/"
        if path.startswith(folder):
            return f"{source.rstrip('/')}/{path.removeprefix(folder)}"
    return f"/{path}"


def _line(at: datetime, text: str, data: Mapping[str, Any] | None = None) -> bytes:
    detail = b"" if data is None else b" " + to_json(dict(data), inf_nan_mode="null")
    return f"{wire_time(at)} {text}".encode() + detail + b"\n"


def _document(document: Any) -> bytes:
    return to_json(document, indent=4, inf_nan_mode="null") + b"\n"
