"""Traces as lines: one trial's events (`trial trace`), and a search over a job's (`job grep`)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from cli.cells import member, members, money, one_line, text
from cli.client import Client, Json, connect, path
from cli.options import JobId, JsonFlag, TrialId
from cli.output import print_json_line, say
from cli.patience import read_patiently
from domain.vocabulary import TRIAL_TERMINAL

DATA_CHARS = 140
FOLLOW_POLL_SEC = 1.0
TRACE_PAGE = 200

TypeOption = Annotated[str | None, typer.Option("--type", help="Only events of exactly this type.")]


def print_trace(
    trial_id: TrialId,
    type_: TypeOption = None,
    grep: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only events whose type or data match, whatever the case."),
    ] = None,
    tail: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Only the last N matching events.")
    ] = None,
    cursor: Annotated[
        int | None, typer.Option(metavar="SEQ", help="Only events after this position.")
    ] = None,
    limit: Annotated[
        int, typer.Option("-l", "--limit", min=1, max=1000, help="Events per request, not a total.")
    ] = TRACE_PAGE,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until the trial is over.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print a trial's parsed trace, one line an event: position, type, and its data cut short."""
    query = {"type": type_, "grep": grep, "tail": tail, "cursor": cursor, "limit": limit}
    with connect() as client:
        read = follow_trace if follow else trace_events
        for event in read(client, trial_id, query):
            if as_json:
                print_json_line(event)
            else:
                say(trace_line(event))


def follow_trace(
    client: Client, trial_id: str, query: Json, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[Json]:
    """The filtered trace as it grows, until the trial has ended and all of it was read."""
    while True:
        # Asked before the trace is read: what was written before the end is then read.
        trial = read_patiently(lambda: client.get(path("/api/trials/{}", trial_id)))
        news = read_patiently(lambda asked=query: list(trace_events(client, trial_id, asked)))
        yield from news
        if trial.get("status") in TRIAL_TERMINAL:
            return
        if news:
            query = {**query, "tail": None, "cursor": news[-1].get("seq")}
        sleep(FOLLOW_POLL_SEC)


def trace_events(client: Client, trial_id: str, query: Json) -> Iterator[Json]:
    """The filtered trace to its end, page by page."""
    while True:
        page = client.get(path("/api/trials/{}/trace", trial_id), query)
        yield from members(page.get("items"))
        if not page.get("nextCursor"):
            return
        query = {**query, "cursor": page["nextCursor"]}


def trace_line(event: Json) -> str:
    """`seq  type  data`; a call that the gateway metered shows its model, tokens and cost instead."""
    seq, data = text(event.get("seq")), member(event, "data")
    update = member(data, "update")
    usage = member(update, "usage")
    if update.get("sessionUpdate") == "usage" and update.get("source") == "gateway" and usage:
        spent = money(usage.get("costUsd"))
        counts = f"{text(usage.get('promptTokens'))} in, {text(usage.get('completionTokens'))} out"
        return one_line(f"{seq}  gateway {text(data.get('model'))}  {counts}  {spent}")
    shown = json.dumps(event.get("data"), ensure_ascii=False)
    return one_line(f"{seq}  {text(event.get('type'))}  {shown[:DATA_CHARS]}")


def grep_job(
    job_id: JobId,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="A regular expression.", show_default=False)
    ],
    type_: TypeOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Search every trial's trace of a job: each trial with its number of matches and the first five."""
    with connect() as client:
        for group in client.pages(path("/api/jobs/{}/grep", job_id), {"q": pattern, "type": type_}):
            if as_json:
                print_json_line(group)
            else:
                print_group(group)


def print_group(group: Json) -> None:
    """One trial's matches: how many, then the sample, indented."""
    matches = text(group.get("match_count"))
    plural = "" if matches == "1" else "es"
    say(one_line(f"{text(group.get('trial_id'))}  {text(group.get('task_name'))}  {matches} match{plural}"))
    for event in members(group.get("events")):
        say(f"  {trace_line(event)}")
