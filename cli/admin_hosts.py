"""`evolve admin host`: which worker hosts live, and an operator's word that one will not come back."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cli import hosts_side
from cli.cells import one_line
from cli.options import JsonFlag
from cli.output import hint, print_json, print_table, say

app = typer.Typer(no_args_is_help=True)

HostId = Annotated[str, typer.Argument(metavar="HOST", help="As `list` shows it.")]


@app.command("list")
def list_hosts(as_json: JsonFlag = False) -> None:
    """List worker hosts: until when their lease runs, what they serve, and the boxes they hold."""
    rows = asyncio.run(hosts_side.list_hosts())
    if as_json:
        print_json([_document(row) for row in rows])
        return
    headers = ("host", "state", "lease until", "providers", "boxes", "memory MB", "code")
    print_table(headers, (_cells(row) for row in rows))


@app.command("drop")
def drop(host: HostId) -> None:
    """Say that a host that is away will not come back: its trials end without their boxes, or run again.

    One that lives is refused: stop its worker first.
    """
    dropped = asyncio.run(hosts_side.drop_host(host))
    say(f"dropped {host}; trials told: {dropped.n_told} of {dropped.n_trials}")
    if dropped.n_told < dropped.n_trials:
        hint("the reaper tells the others")


def _document(row: hosts_side.HostRow) -> dict[str, Any]:
    return {**asdict(row), "lease_expires_at": row.lease_expires_at.isoformat(timespec="seconds")}


def _cells(row: hosts_side.HostRow) -> list[str]:
    until = row.lease_expires_at.isoformat(timespec="seconds")
    state, memory = "live" if row.is_live else "away", f"{row.used_memory_mb} of {row.memory_mb}"
    served = [f"{name} (paused)" if why else name for name, why in row.providers.items()]
    return [one_line(row.id), state, until, ", ".join(served), str(row.n_boxes), memory, row.code_version]
