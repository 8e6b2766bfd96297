"""`evolve job …`: everything about jobs but starting one."""

from __future__ import annotations

import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli import later
from cli.blocks import job_facts, print_arms
from cli.cells import (
    dataset_refs,
    elapsed,
    job_money,
    live_phase,
    member,
    members,
    money,
    reward,
    tally,
    text,
    trial_arm,
    trial_money,
)
from cli.client import Client, Json, connect, path
from cli.derived import regrade_job, resume_job, retry_job
from cli.errors import CliError
from cli.failures import print_exceptions
from cli.flag_groups import with_flag_groups
from cli.options import JobId, JsonFlag, OutputDirectory, RowsOption, StatusOption
from cli.output import Column, ListFlags, print_facts, print_json, print_list, say
from cli.packing import refuse_existing, unpack_archive
from cli.run import start_job
from cli.traces import grep_job
from cli.transfers import download_archive

STOP_BATCH = 500
LIVE_STATUSES = "QUEUED,RUNNING,SCORING"

app = typer.Typer(no_args_is_help=True)
app.command("start")(start_job)

JOB_COLUMNS = (
    Column("id", lambda job: text(job.get("id"))),
    Column("name", lambda job: text(job.get("job_name"))),
    Column("status", lambda job: text(job.get("status"))),
    Column("datasets", lambda job: dataset_refs(job.get("datasets"))),
    Column("agents", lambda job: ", ".join(str(arm.get("name")) for arm in members(job.get("agents")))),
    Column("trials", lambda job: text(job.get("n_total_trials"))),
    Column("outcome", lambda job: tally(member(member(job, "trials"), "byStatus"))),
    Column("spent", job_money),
    Column("started", lambda job: text(job.get("started_at"))),
    Column("took", lambda job: elapsed(job.get("started_at"), job.get("finished_at")), is_default=False),
    Column("provider", lambda job: text(job.get("sandbox_provider")), is_default=False),
    Column("org", lambda job: text(job.get("org")), is_default=False),
)
TRIAL_COLUMNS = (
    Column("id", lambda trial: text(trial.get("id"))),
    Column("task", lambda trial: text(trial.get("task_name"))),
    Column("agent", trial_arm),
    Column("attempt", lambda trial: text(trial.get("attempt"))),
    Column("status", lambda trial: text(trial.get("status"))),
    Column("reward", lambda trial: reward(trial.get("reward"))),
    Column("spent", trial_money),
    Column("phase", live_phase),
    Column("took", lambda trial: elapsed(trial.get("started_at"), trial.get("finished_at"))),
    Column("exception", lambda trial: text(member(trial, "exception_info").get("exception_type"))),
    Column("retries", lambda trial: text(trial.get("n_retries")), is_default=False),
    Column("dataset", lambda trial: text(trial.get("source")), is_default=False),
    Column("provider", lambda trial: text(trial.get("sandbox_provider")), is_default=False),
    Column("started", lambda trial: text(trial.get("started_at")), is_default=False),
    Column("finished", lambda trial: text(trial.get("finished_at")), is_default=False),
    Column(
        "message",
        lambda trial: text(member(trial, "exception_info").get("exception_message")),
        is_default=False,
    ),
)
TASK_COLUMNS = (
    Column("task", lambda task: text(task.get("task_name"))),
    Column("dataset", lambda task: text(task.get("source"))),
    Column("trials", lambda task: text(member(task, "trials").get("total"))),
    Column("outcome", lambda task: tally(member(member(task, "trials"), "byStatus"))),
    Column("mean", lambda task: reward(task.get("mean_reward"))),
    Column("spent", lambda task: money(task.get("cost_usd"))),
)


@app.command("list")
@with_flag_groups
def list_jobs(
    flags: ListFlags,
    scope: Annotated[
        Literal["my", "shared", "org"] | None, typer.Option(help="Whose jobs. (default: my)")
    ] = None,
    search: Annotated[str | None, typer.Option(help="Only jobs whose name or dataset holds this.")] = None,
    limit: RowsOption = None,
) -> None:
    """List jobs, newest first."""
    with connect() as client:
        jobs = islice(client.pages("/api/jobs", {"scope": scope, "search": search}), limit)
        print_list(jobs, JOB_COLUMNS, flags, identify=lambda job: str(job["id"]))


@app.command("show")
def show_job(job_id: JobId, as_json: JsonFlag = False) -> None:
    """Show one job: its facts, each arm's mean reward and pass@k, and what trials ended by."""
    with connect() as client:
        job = client.get(path("/api/jobs/{}", job_id))
    if as_json:
        print_json(job)
        return
    print_facts(job_facts(job))
    say()
    print_arms(job)
    print_exceptions(job)


@app.command("watch")
def watch(
    job_id: JobId,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print the final block only.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Follow a job to its end, from its first event. Ctrl-C leaves the job running."""
    from cli.watch import watch_job  # here: models, which the other commands do without

    with connect() as client:
        watch_job(client, job_id, as_json=as_json, quiet=quiet)


@app.command("trials")
@with_flag_groups
def list_trials(
    job_id: JobId,
    flags: ListFlags,
    status: StatusOption = None,
    dataset: Annotated[str | None, typer.Option(metavar="NAME", help="Only trials of this dataset.")] = None,
    limit: RowsOption = None,
) -> None:
    """List a job's trials."""
    with connect() as client:
        query = {"status": status, "dataset": dataset}
        trials = islice(client.pages(path("/api/jobs/{}/trials", job_id), query), limit)
        print_list(trials, TRIAL_COLUMNS, flags, identify=lambda trial: str(trial["id"]))


@app.command("tasks")
@with_flag_groups
def list_tasks(job_id: JobId, flags: ListFlags) -> None:
    """List a job's tasks, one row each, with the mean reward over its scored trials."""
    with connect() as client:
        tasks = client.pages(path("/api/jobs/{}/tasks", job_id))
        print_list(tasks, TASK_COLUMNS, flags, identify=lambda task: str(task["task_name"]))


@app.command("cancel")
def cancel_job(job_id: JobId, as_json: JsonFlag = False) -> None:
    """Cancel a whole job. A finished job stays as it is."""
    _tell("cancel", job_id, as_json=as_json)


@app.command("pause")
def pause_job(job_id: JobId, as_json: JsonFlag = False) -> None:
    """Let a job's running trials finish and start no more, until `evolve job unpause`."""
    _tell("pause", job_id, as_json=as_json)


@app.command("unpause")
def unpause_job(job_id: JobId, as_json: JsonFlag = False) -> None:
    """Let a paused job go on."""
    _tell("unpause", job_id, as_json=as_json)


def _tell(verb: str, job_id: str, *, as_json: bool) -> None:
    with connect() as client:
        job = client.post(path(f"/api/jobs/{{}}/{verb}", job_id), {})
    if as_json:
        print_json(job)
        return
    paused_at = job.get("paused_at")
    say(f"{job_id}  {text(job.get('status'))}{f'  paused since {paused_at}' if paused_at else ''}")


@app.command("stop")
def stop_dataset(
    job_id: JobId,
    dataset: Annotated[str, typer.Option(metavar="NAME", help="Whose live trials end.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """End one dataset's live trials; the job goes on with the others."""
    with connect() as client:
        query = {"dataset": dataset, "status": LIVE_STATUSES}
        trials = client.pages(path("/api/jobs/{}/trials", job_id), query)
        answers = stop_trials(client, [str(trial["id"]) for trial in trials])
    print_stopped(answers, as_json=as_json)


@app.command("delete")
def delete_job(
    job_id: JobId,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete a finished job for good: its trials, traces and stored files."""
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("there is nobody to ask: confirm with --yes", param_hint="--yes")
        typer.confirm(f"Delete job {job_id} and everything stored of it?", abort=True, err=True)
    with connect() as client:
        receipt = client.delete(path("/api/jobs/{}", job_id))
    if as_json:
        print_json(receipt)
    else:
        say(f"deleted {job_id} with {text(receipt.get('trials_deleted'))} trials")


@app.command("download")
def download_job(job_id: JobId, directory: OutputDirectory = Path("jobs")) -> None:
    """Save a finished job's results as DIR/job-ID/, checked against their digest."""
    if "/" in job_id or job_id in ("", ".", ".."):
        raise CliError(f"{job_id!r} is no job id", code="invalid_input")
    target = directory / f"job-{job_id}"
    refuse_existing(target, overwrite=False)
    with connect() as client, tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "job.tar.gz"
        download_archive(client, path("/api/jobs/{}/download", job_id), archive)
        unpack_archive(archive, target, is_wrapped=True)
    say(str(target))


app.command("grep")(grep_job)
app.command("resume")(resume_job)
app.command("retry")(retry_job)
app.command("regrade")(regrade_job)


def stop_trials(client: Client, trial_ids: list[str]) -> Json:
    """The server's answers to stopping these trials, put together."""
    lists: dict[str, list[object]] = {"stopped": [], "already_terminal": [], "not_found": []}
    for start in range(0, len(trial_ids), STOP_BATCH):
        batch = trial_ids[start : start + STOP_BATCH]
        answer = client.post("/api/trials/stop", {"trial_ids": batch})
        for name, found in lists.items():
            found.extend(answer.get(name) or ())
    return dict(lists)


def print_stopped(answers: Json, *, as_json: bool) -> None:
    """One line a trial; raises `CliError` after them if some were not found."""
    if as_json:
        print_json(answers)
    else:
        for trial in members(answers["stopped"]):
            say(f"{trial.get('id')}  {text(trial.get('status'))}  stopped")
        for trial_id in answers["already_terminal"]:
            say(f"{trial_id}  was over already")
    missing = answers["not_found"]
    if missing:
        raise CliError(f"no such trial: {', '.join(map(str, missing))}", code="trial_not_found")


later.refuse(app, "evolve job", "compare", "share", "imports", "import")
