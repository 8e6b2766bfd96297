"""Commands that make a new job of another's trials; the source stays as it is."""

from __future__ import annotations

import uuid
from typing import Annotated

import typer

from cli.client import Json, connect, path
from cli.options import JobId, JsonFlag, StatusOption, TrialId, TrialOptions
from cli.output import hint, is_terminal, print_json, say

WithTests = Annotated[
    str | None,
    typer.Option(
        "--with-tests", metavar="DATASET@VERSION", help="Judge by the tests of this version instead."
    ),
]


def resume_job(
    job_id: JobId,
    exception_types: Annotated[
        list[str] | None,
        typer.Option(
            "-f", "--filter-error-type", metavar="TYPE", help="Only trials ended by this exception."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run what failed or was stopped of a finished job, as a new job. Scored trials are never run again."""
    body: Json = {"filter_error_types": exception_types} if exception_types else {}
    _derive(path("/api/jobs/{}/resume", job_id), body, as_json=as_json)


def retry_job(
    job_id: JobId,
    failed_only: Annotated[
        bool, typer.Option("--failed-only", help="Only failed trials; stopped ones are not.")
    ] = False,
    trial_ids: TrialOptions = None,
    as_json: JsonFlag = False,
) -> None:
    """Run trials of a job again, as a new job: all of a finished job, its failed ones, or those named."""
    if failed_only and trial_ids:
        raise typer.BadParameter("--failed-only and -t exclude each other")
    body: Json = {"failed_only": True} if failed_only else {"trial_ids": trial_ids} if trial_ids else {}
    _derive(path("/api/jobs/{}/retry", job_id), body, as_json=as_json)


def retry_trial(trial_id: TrialId, as_json: JsonFlag = False) -> None:
    """Run one settled trial again, as a new job."""
    _derive(path("/api/trials/{}/retry", trial_id), {}, as_json=as_json)


def regrade_job(
    job_id: JobId,
    statuses: StatusOption = None,
    task_name: Annotated[str | None, typer.Option("--task", metavar="NAME", help="Only this task.")] = None,
    with_tests: WithTests = None,
    as_json: JsonFlag = False,
) -> None:
    """Let separate verifiers judge again what they judged, as a new job. No agent runs.

    Trials whose verifier shared the agent's box, has steps or asks a language model are passed over.
    """
    body = _tests(with_tests)
    if statuses is not None:
        body["statuses"] = statuses.split(",")
    if task_name is not None:
        body["task_name"] = task_name
    _derive(path("/api/jobs/{}/regrade", job_id), body, as_json=as_json, is_keyed=False)


def regrade_trial(trial_id: TrialId, with_tests: WithTests = None, as_json: JsonFlag = False) -> None:
    """Let one trial's separate verifier judge again what it judged, as a new job. No agent runs."""
    _derive(path("/api/trials/{}/regrade", trial_id), _tests(with_tests), as_json=as_json, is_keyed=False)


def _tests(reference: str | None) -> Json:
    from cli.jobspec import dataset_selector  # here: yaml and models, which the others do without

    return {} if reference is None else {"with_tests": dataset_selector(reference, "--with-tests")}


def _derive(route: str, body: Json, *, as_json: bool, is_keyed: bool = True) -> None:
    with connect() as client:
        # The key lets the request be sent again if its answer is lost: still one job.
        job = client.post(route, body, idempotency_key=str(uuid.uuid4()) if is_keyed else None)
    if as_json:
        print_json(job)
        return
    say(str(job["id"]))
    if is_terminal():
        hint(f"follow it with: evolve job watch {job['id']}")
