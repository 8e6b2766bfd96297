"""`evolve admin providers`: whether a provider's boxes are being made, and an operator's word on it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from cli import store_side
from cli.cells import one_line
from cli.options import JsonFlag
from cli.output import print_json, print_table, say
from domain.vocabulary import SandboxProvider

app = typer.Typer(no_args_is_help=True)

ProviderName = Annotated[SandboxProvider, typer.Argument(metavar="PROVIDER", help="As jobs name it.")]


@app.command("list")
def list_providers(as_json: JsonFlag = False) -> None:
    """List providers whose boxes failed to be made: their breaker, since when, and why."""
    rows = asyncio.run(store_side.list_providers())
    if as_json:
        print_json([{**asdict(row), "since": _since(row) or None} for row in rows])
        return
    headers = ("provider", "breaker", "since", "held by an operator", "reason")
    print_table(headers, (_cells(row) for row in rows))


@app.command("pause")
def pause(provider: ProviderName) -> None:
    """Make no more boxes of a provider until it is told to resume; running trials finish."""
    asyncio.run(store_side.order_provider(provider.value, "open"))
    say(f"{provider.value} is asked to pause")


@app.command("resume")
def resume(provider: ProviderName) -> None:
    """Make boxes of a provider again, whatever failed before."""
    asyncio.run(store_side.order_provider(provider.value, "close"))
    say(f"{provider.value} is asked to resume")


def _cells(row: store_side.ProviderRow) -> list[str]:
    held = "yes" if row.is_held else ""
    return [row.provider, row.state, _since(row), held, one_line(row.reason or "")]


def _since(row: store_side.ProviderRow) -> str:
    return row.since.isoformat(timespec="seconds") if row.since else ""
