"""`evolve trial …`: one trial's record, trace and files."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli import later
from cli.cells import (
    UNKNOWN,
    elapsed,
    is_base_image_replaced,
    judge_money,
    member,
    members,
    money,
    number,
    one_line,
    reward,
    text,
    tokens,
    trial_arm,
    trial_money,
)
from cli.client import Client, Json, connect, path
from cli.derived import regrade_trial, retry_trial
from cli.errors import CliError
from cli.jobs import print_stopped, stop_trials
from cli.options import JsonFlag, OutputDirectory, TrialId, TrialIds
from cli.output import print_facts, print_json, print_json_line, say
from cli.packing import refuse_existing, unpack_archive
from cli.traces import TRACE_PAGE, print_trace, trace_events
from cli.transfers import download_archive

Stream = Literal[
    "trace-parsed", "verifier", "trace-stdout", "trace-stderr", "trace-atif", "trajectory", "agent-home"
]

app = typer.Typer(no_args_is_help=True)


@app.command("show")
def show_trial(trial_id: TrialId, as_json: JsonFlag = False) -> None:
    """Show one trial: status, reward, tokens, spend, timing, and why it failed."""
    with connect() as client:
        trial = client.get(path("/api/trials/{}", trial_id))
    if as_json:
        print_json(trial)
    else:
        print_facts(trial_facts(trial))


def trial_facts(trial: Json) -> list[tuple[str, str]]:
    """The trial, name by name; unknown ones are left out when printed."""
    exception = member(trial, "exception_info")
    analysis = member(trial, "analysis")
    return [
        ("trial", text(trial.get("id"))),
        ("job", text(trial.get("job_id"))),
        ("made of", text(trial.get("x_source_trial_id"))),
        ("task", text(trial.get("task_name"))),
        ("dataset", text(trial.get("source"))),
        ("agent", trial_arm(trial)),
        ("agent version", text(member(trial, "agent_info").get("version"))),
        ("attempt", text(trial.get("attempt"))),
        ("status", text(trial.get("status"))),
        ("phase", text(trial.get("attempt_phase"))),
        *_waiting(trial),
        ("no output since", text(trial.get("x_silent_since"))),
        ("reward", reward(trial.get("reward"))),
        *_named_rewards(trial),
        *(_step(step) for step in members(trial.get("step_results"))),
        ("tokens", tokens(member(trial, "agent_result"))),
        ("spent", trial_money(trial)),
        ("spent (judge)", judge_money(trial)),
        ("gpu compute (est.)", money(member(trial, "gpu_cost").get("estimate_usd"))),
        ("cap", money(trial.get("max_trial_spend_usd"))),
        ("provider", text(trial.get("sandbox_provider") or ("ported" if trial.get("upload") else None))),
        ("base image", "replaced by this machine's files" if is_base_image_replaced(trial) else UNKNOWN),
        ("not enforced", ", ".join(trial.get("x_unenforced") or ()) or UNKNOWN),
        ("sandbox", text(trial.get("sandbox_id"))),
        ("retries", text(trial.get("n_retries") or None)),
        *(_retired(attempt) for attempt in members(trial.get("retries"))),
        ("started", text(trial.get("started_at"))),
        ("took", elapsed(trial.get("started_at"), trial.get("finished_at"))),
        *((f"  {phase}", _window(trial, phase)) for phase in _PHASES),
        ("exception", text(exception.get("exception_type"))),
        ("message", text(exception.get("exception_message"))),
        ("analysis", text(analysis.get("status"))),
        ("summary", text(analysis.get("summary"))),
    ]


def _waiting(trial: Json) -> Iterator[tuple[str, str]]:
    """What the trial waits for and since when, or how long its provider kept it waiting."""
    wait = member(trial, "x_capacity_wait")
    if wait and wait.get("until") is None and trial.get("finished_at") is None:
        yield "waiting for", f"{text(wait.get('waiting_for'))} since {text(wait.get('since'))}"
    elif wait.get("n_refusals"):
        seconds = number(wait.get("waited_sec")) or 0.0
        yield "waited", f"{seconds:.0f} s for capacity, refused {text(wait.get('n_refusals'))} times"


def _retired(attempt: Json) -> tuple[str, str]:
    """An earlier attempt number: why it failed, what it cost, when it ended."""
    exception = member(attempt, "exception_info")
    why = one_line(text(exception.get("exception_message")))[:MESSAGE_CHARS]
    spent, settled_at = money(attempt.get("cost_usd")), text(attempt.get("settled_at"))
    facts = (text(exception.get("exception_type")), why, spent, settled_at)
    return f"  attempt {text(attempt.get('attempt_number'))}", "  ".join(facts)


def _step(step: Json) -> tuple[str, str]:
    """A step of a multi-step trial: what its verifier gave, and what ended it."""
    rewards = member(member(step, "verifier_result"), "rewards")
    facts = [f"{name} {reward(value)}" for name, value in rewards.items()]
    exception = member(step, "exception_info")
    if exception:
        why = one_line(text(exception.get("exception_message")))[:MESSAGE_CHARS]
        facts += [text(exception.get("exception_type")), why]
    return f"  step {text(step.get('step_name'))}", "  ".join(facts)


MESSAGE_CHARS = 80
_PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")


def _named_rewards(trial: Json) -> Iterator[tuple[str, str]]:
    rewards = member(member(trial, "verifier_result"), "rewards")
    if set(rewards) - {"reward"}:
        yield from ((f"  {name}", reward(value)) for name, value in rewards.items())


def _window(trial: Json, phase: str) -> str:
    window = member(trial, phase)
    return elapsed(window.get("started_at"), window["finished_at"]) if window.get("finished_at") else UNKNOWN


app.command("trace")(print_trace)


@app.command("download")
def download_trial(
    trial_id: TrialId,
    directory: OutputDirectory = Path("trials"),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder that is there.")] = False,
    stream: Annotated[
        Stream | None, typer.Option("--stream", help="Print one artifact instead of saving.")
    ] = None,
    cursor: Annotated[
        int | None, typer.Option(metavar="SEQ", help="With --stream trace-parsed: only events after this.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, max=1000, help="With --stream trace-parsed: events per request.")
    ] = None,
) -> None:
    """Save a settled trial as DIR/ID/ with its evolve.json, or print one artifact."""
    if stream != "trace-parsed" and not (cursor is None and limit is None):
        raise typer.BadParameter("--cursor and --limit go with --stream trace-parsed only")
    if stream is not None and overwrite:
        raise typer.BadParameter("--overwrite and --stream exclude each other")
    with connect() as client:
        if stream == "trace-parsed":
            for event in trace_events(client, trial_id, {"cursor": cursor, "limit": limit or TRACE_PAGE}):
                print_json_line(event)
        elif stream is not None:
            print_artifact(client, trial_id, stream)
        else:
            say(str(save_trial(client, trial_id, directory, overwrite=overwrite)))


def print_artifact(client: Client, trial_id: str, stream: str) -> None:
    """One stored artifact, byte for byte as text; raises `CliError` when nothing is served."""
    answer = client.get(path("/api/trials/{}/trace", trial_id), {"stream": stream})
    files: Any = answer.get("files")
    log: Any = answer.get("log")
    if isinstance(files, dict):
        print_json(files)
    elif isinstance(log, str):
        sys.stdout.write(log)
    else:
        reason = answer.get("reason") or f"the trial recorded no {stream}"
        raise CliError(f"{stream}: {reason}", code="not_found")


def save_trial(client: Client, trial_id: str, directory: Path, *, overwrite: bool) -> Path:
    """The directory that holds the trial's tree and `evolve.json`, the platform's own record of it."""
    if "/" in trial_id or trial_id in ("", ".", ".."):
        raise CliError(f"{trial_id!r} is no trial id", code="invalid_input")
    target = directory / trial_id
    refuse_existing(target, overwrite=overwrite)
    trial = client.get(path("/api/trials/{}", trial_id))
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "trial.tar.gz"
        download_archive(client, path("/api/trials/{}/download", trial_id), archive)
        unpack_archive(archive, target, is_wrapped=True, overwrite=overwrite)
    record = json.dumps(platform_record(trial), ensure_ascii=False, indent=2)
    (target / "evolve.json").write_text(f"{record}\n", encoding="utf-8")
    return target


def platform_record(trial: Json) -> Json:
    """What the trial's files do not say: identity, cost and tokens by lane, provider, retries."""
    lane = ("n_input_tokens", "n_cache_tokens", "n_output_tokens", "cost_usd")
    agent, judge = member(trial, "agent_result"), member(trial, "judge_result")
    return {
        **{key: trial.get(key) for key in ("id", "job_id", "task_name", "source", "attempt", "status")},
        "agent": {**{key: agent.get(key) for key in lane}, "spend_source": trial.get("spend_source")},
        "judge": {**{key: judge.get(key) for key in lane}, "spend_source": trial.get("judge_spend_source")}
        if judge
        else None,
        "gpu_cost": trial.get("gpu_cost"),
        "max_trial_spend_usd": trial.get("max_trial_spend_usd"),
        "sandbox_provider": trial.get("sandbox_provider"),
        "sandbox_provider_degrade": trial.get("sandbox_provider_degrade"),
        "base_image_replaced": is_base_image_replaced(trial),
        "retries": trial.get("retries"),
        "source_trial_id": trial.get("x_source_trial_id"),
    }


@app.command("stop")
def stop(trial_ids: TrialIds, as_json: JsonFlag = False) -> None:
    """End trials that are under way; their job goes on."""
    with connect() as client:
        print_stopped(stop_trials(client, trial_ids), as_json=as_json)


app.command("retry")(retry_trial)
app.command("regrade")(regrade_trial)
later.refuse(app, "evolve trial", "files", "logs", "procs")
