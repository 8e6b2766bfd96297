"""`evolve admin reap` and `incidents`: what nobody needs any more, and what needs a person."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli import reaper_side
from cli.cells import one_line
from cli.errors import CliError
from cli.options import JsonFlag
from cli.output import hint, print_json, print_table

if TYPE_CHECKING:
    from domain.reaping import Leftover

MB = 1024 * 1024


def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """End what nobody needs any more, as the reaper does every few minutes: boxes, keys, blobs, images."""
    report = asyncio.run(reaper_side.reap(is_dry=dry_run))
    if as_json:
        print_json({"is_dry_run": dry_run, **report.model_dump(mode="json")})
    else:
        headers = ("kind", "what", "host", "MB", "why")
        print_table(headers, (_cells(each) for each in report.leftovers))
        n_more = sum(report.n_by_kind.values()) - len(report.leftovers)
        if n_more:
            hint(f"and {n_more} more of the same kinds")
    if report.problems:
        raise CliError("; ".join(report.problems), code="reaper_incomplete")


def incidents(
    every: Annotated[bool, typer.Option("--all", help="Those that are over too.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """List what went wrong outside of any trial and needs a person, such as a box that cannot be deleted."""
    rows = asyncio.run(reaper_side.list_incidents(is_open_only=not every))
    if as_json:
        print_json([{name: _plain(value) for name, value in asdict(row).items()} for row in rows])
        return
    headers = ("kind", "subject", "times", "first", "last", "over", "message")
    print_table(headers, (_incident_cells(row) for row in rows))


def _cells(leftover: Leftover) -> list[str]:
    size = "" if leftover.size_bytes is None else f"{leftover.size_bytes / MB:.0f}"
    return [
        leftover.kind.value,
        one_line(leftover.subject),
        leftover.host_id or "",
        size,
        one_line(leftover.why),
    ]


def _incident_cells(row: reaper_side.IncidentRow) -> list[str]:
    times = [str(_plain(at) or "") for at in (row.first_at, row.last_at, row.resolved_at)]
    return [row.kind, one_line(row.subject), str(row.n_times), *times, one_line(row.message)]


def _plain(value: object) -> object:
    return value.isoformat(timespec="seconds") if isinstance(value, datetime) else value
