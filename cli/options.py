"""Flags and arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print full JSON objects.")]
ColumnsFlag = Annotated[
    str | None,
    typer.Option("--columns", metavar="KEYS|all|help", help="Choose and order columns; `help` lists them."),
]
QuietFlag = Annotated[bool, typer.Option("-q", "--quiet", help="Print identifiers only, one per line.")]
NoTruncFlag = Annotated[bool, typer.Option("--no-trunc", help="Print full cells on a terminal.")]
NoHeadersFlag = Annotated[bool, typer.Option("--no-headers", help="Leave the header out of piped output.")]

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id.", show_default=False)]
TrialId = Annotated[str, typer.Argument(metavar="TRIAL", help="The trial's id.", show_default=False)]
OutputDirectory = Annotated[
    Path, typer.Option("-o", "--output-dir", metavar="DIR", help="The directory to save under.")
]
