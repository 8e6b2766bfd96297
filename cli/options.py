"""Flags and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from domain.vocabulary import TrialStatus

JsonFlag = Annotated[bool, typer.Option("--json", help="Print full JSON objects.")]
ColumnsFlag = Annotated[
    str | None,
    typer.Option("--columns", metavar="KEYS|all|help", help="Choose and order columns; `help` lists them."),
]
QuietFlag = Annotated[bool, typer.Option("-q", "--quiet", help="Print identifiers only, one per line.")]
NoTruncFlag = Annotated[bool, typer.Option("--no-trunc", help="Print full cells on a terminal.")]
NoHeadersFlag = Annotated[bool, typer.Option("--no-headers", help="Leave the header out of piped output.")]


def _job(context: typer.Context, word: str) -> str:
    from cli.which import job_of  # here: the client, which help does without

    return word if context.resilient_parsing else job_of(word)


def _trial(context: typer.Context, word: str) -> str:
    from cli.which import trial_of

    return word if context.resilient_parsing else trial_of(word)


def _trials(context: typer.Context, words: list[str] | None) -> list[str] | None:
    return words and [_trial(context, word) for word in words]


def statuses(text: str | None) -> str | None:
    """`a,b` as the API spells them; a usage error for one that no trial can have."""
    if text is None:
        return None
    words = [word.strip().upper() for word in text.split(",") if word.strip()]
    if not words:
        raise typer.BadParameter(f"name at least one of {', '.join(TrialStatus)}")
    if wrong := [word for word in words if word not in TrialStatus.__members__]:
        raise typer.BadParameter(f"no status {wrong[0]!r}; there are {', '.join(TrialStatus)}")
    return ",".join(words)


JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="The job's id, the start of it, or `last`.",
        show_default=False,
        callback=_job,
    ),
]
TrialId = Annotated[
    str,
    typer.Argument(
        metavar="TRIAL",
        help="The trial's id, the start of it, or `last`.",
        show_default=False,
        callback=_trial,
    ),
]
TrialIds = Annotated[
    list[str],
    typer.Argument(
        metavar="TRIAL...",
        help="Trial ids, starts of them, or `last`.",
        show_default=False,
        callback=_trials,
    ),
]
TrialOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-t", "--trial", metavar="TRIAL", help="Exactly this settled trial. Repeatable.", callback=_trials
    ),
]
StatusOption = Annotated[
    str | None,
    typer.Option(
        "--status",
        metavar="A,B",
        help=f"Only trials of these statuses: {', '.join(TrialStatus)}.",
        callback=statuses,
    ),
]
RowsOption = Annotated[int | None, typer.Option("-l", "--limit", min=1, metavar="N", help="At most N rows.")]
OutputDirectory = Annotated[
    Path, typer.Option("-o", "--output-dir", metavar="DIR", help="The directory to save under.")
]
