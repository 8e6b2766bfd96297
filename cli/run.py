"""`evolve run`, also named `evolve job start`: start a job, and follow it if asked."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated

import typer

from cli.client import connect
from cli.errors import NotInThisRelease
from cli.options import JsonFlag
from cli.output import hint, is_terminal, print_json, say

Later = Annotated[str | None, typer.Option(hidden=True)]


def start_job(
    datasets: Annotated[
        list[str] | None, typer.Option("-d", metavar="NAME[@VERSION]", help="A dataset. Repeatable.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("-a", metavar="NAME[@VERSION]", help="The agent harness.")
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "-m", metavar="MODEL", help="A model; each is one arm. Not needed for oracle and nop. Repeatable."
        ),
    ] = None,
    n_attempts: Annotated[
        int | None, typer.Option("-k", metavar="N", min=1, help="Attempts per task and arm. (default: 1)")
    ] = None,
    n_concurrent: Annotated[
        int | None, typer.Option("-n", metavar="N", min=1, max=150, help="Trials in parallel. (default: 4)")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option("-i", metavar="GLOB", help="Only tasks so named. Repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("-x", metavar="GLOB", help="No task so named. Repeatable.")
    ] = None,
    n_tasks: Annotated[
        int | None,
        typer.Option("-l", metavar="N", min=1, help="Cap of tasks per dataset, after the filters."),
    ] = None,
    job_name: Annotated[
        str | None, typer.Option("--job-name", metavar="LABEL", help="The job's label.")
    ] = None,
    org: Annotated[
        str | None, typer.Option("--org", metavar="SLUG", help="The organization that owns it.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            "-e",
            metavar="docker|local|e2b|daytona|modal",
            help="Where the sandboxes run. (default: the server's, see its /api/meta)",
        ),
    ] = None,
    effort: Annotated[
        str | None, typer.Option("--effort", metavar="LEVEL", help="Reasoning effort of every arm.")
    ] = None,
    preset: Annotated[
        str | None, typer.Option("--preset", metavar="no-internet|pinned-context", help="Of every arm.")
    ] = None,
    agent_kwargs: Annotated[
        list[str] | None,
        typer.Option("--ak", metavar="config=PATH|JSON", help="The harness's own settings, for every arm."),
    ] = None,
    max_trial_spend: Annotated[
        float | None,
        typer.Option("--max-trial-spend", metavar="USD", help="Cap per trial attempt. (default: 200)"),
    ] = None,
    max_retries: Annotated[
        int | None,
        typer.Option("-r", "--max-retries", metavar="N", min=0, max=10, help="Automatic retries; 0 is off."),
    ] = None,
    retry_include: Annotated[
        list[str] | None,
        typer.Option("--retry-include", metavar="TYPE", help="Retry only these exceptions. Repeatable."),
    ] = None,
    retry_exclude: Annotated[
        list[str] | None,
        typer.Option("--retry-exclude", metavar="TYPE", help="Never these; wins. Repeatable."),
    ] = None,
    timeout_multiplier: Annotated[
        float | None,
        typer.Option("--timeout-multiplier", metavar="X", help="Scale declared timeouts. (default: 1.0)"),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("-c", metavar="FILE", help="YAML or JSON with the job's fields; flags override them."),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the request's body and start nothing.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Follow the job to its end.")] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="With --watch: print the final block only.")
    ] = False,
    as_json: JsonFlag = False,
    ae: Later = None,
    ve: Later = None,
    skills: Annotated[str | None, typer.Option("--skills", "--skill", hidden=True)] = None,
    secret: Later = None,
    secret_inline: Later = None,
    analyze_model: Later = None,
    analyze_rubric: Later = None,
    analyze_prompt: Later = None,
    analyze_effort: Later = None,
    analyze_provider: Later = None,
    analyze: Annotated[bool, typer.Option("--analyze", hidden=True)] = False,
    system_log: Annotated[bool, typer.Option("--system-log", hidden=True)] = False,
) -> None:
    """Start a job: every selected task with every arm. Prints the job's id.

    Several harnesses in one job need a config file. The flags --ae, --ve, --skills, --secret,
    --secret-inline, --analyze… and --system-log are refused: they are not in this release.
    """
    _refuse_later(
        {
            "--ae": ae,
            "--ve": ve,
            "--skills": skills,
            "--secret": secret,
            "--secret-inline": secret_inline,
            "--analyze-model": analyze_model,
            "--analyze-rubric": analyze_rubric,
            "--analyze-prompt": analyze_prompt,
            "--analyze-effort": analyze_effort,
            "--analyze-provider": analyze_provider,
            "--analyze": analyze,
            "--system-log": system_log,
        }
    )
    from cli.jobspec import RunFlags, job_body  # here: yaml and models, which `job list` does without

    flags = RunFlags(
        config=config,
        datasets=datasets or (),
        agent=agent,
        models=models or (),
        n_attempts=n_attempts,
        n_concurrent=n_concurrent,
        include=include or (),
        exclude=exclude or (),
        n_tasks=n_tasks,
        job_name=job_name,
        org=org,
        provider=provider,
        effort=effort,
        preset=preset,
        agent_kwargs=agent_kwargs or (),
        max_trial_spend=max_trial_spend,
        max_retries=max_retries,
        retry_include=retry_include or (),
        retry_exclude=retry_exclude or (),
        timeout_multiplier=timeout_multiplier,
    )
    body = job_body(flags)
    if print_config:
        print_json(body)
        return
    with connect() as client:
        # The key lets the request be sent again if its answer is lost: still one job.
        job = client.post("/api/jobs", body, idempotency_key=str(uuid.uuid4()))
        job_id = str(job["id"])
        if watch:
            from cli.watch import watch_job

            watch_job(client, job_id, as_json=as_json, quiet=quiet)
        elif as_json:
            print_json(job)
        else:
            say(job_id)
            if is_terminal():
                hint(f"follow it with: evolve job watch {job_id}")


def _refuse_later(flags: dict[str, str | bool | None]) -> None:
    for flag, value in flags.items():
        if value not in (None, False):
            raise NotInThisRelease(flag)
