"""What commands print: a table on a terminal, TSV in a pipe, JSON when asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from cli.cells import UNKNOWN, one_line
from cli.client import Json
from cli.options import ColumnsFlag, JsonFlag, NoHeadersFlag, NoTruncFlag, QuietFlag


@dataclass(frozen=True)
class Column:
    """One column of a list: its key, its cell, and whether it is shown unasked."""

    key: str
    cell: Callable[[Json], str]
    is_default: bool = True


@dataclass(frozen=True)
class ListFlags:
    """The flags that every list command takes; a command takes them by `with_flag_groups`."""

    columns: ColumnsFlag = None
    quiet: QuietFlag = False
    no_trunc: NoTruncFlag = False
    no_headers: NoHeadersFlag = False
    as_json: JsonFlag = False


def is_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def say(line: str = "") -> None:
    """One line on standard output."""
    typer.echo(line)


def hint(line: str) -> None:
    """One line beside the output: on standard error."""
    typer.echo(line, err=True)


def print_json(value: Any) -> None:
    """An object or array, indented."""
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_json_line(value: Any) -> None:
    """An object on one line, for streams."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_list(
    rows: Iterable[Json], columns: Sequence[Column], flags: ListFlags, *, identify: Callable[[Json], str]
) -> None:
    """The rows as `flags` ask; `identify` is what `-q` prints of a row. An unknown column is misuse."""
    chosen = _chosen_columns(columns, flags.columns)
    if flags.columns == "help":
        for column in columns:
            say(column.key)
    elif flags.quiet:
        for row in rows:
            say(one_line(identify(row)))
    elif flags.as_json:
        print_json(list(rows))
    else:
        print_table([column.key for column in chosen], _cells(rows, chosen), flags)


def print_table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], flags: ListFlags | None = None
) -> None:
    """Cells under headers; in a pipe each row goes out as it comes."""
    flags = flags or ListFlags()
    if is_terminal():
        _print_rich_table(headers, rows, no_trunc=flags.no_trunc)
        return
    if not flags.no_headers:
        say("\t".join(headers))
    for row in rows:
        say("\t".join(one_line(cell) for cell in row))


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """A block of `name  value` lines; unknown values are left out."""
    known = [(name, value) for name, value in facts if value != UNKNOWN]
    if not is_terminal():
        for name, value in known:
            say(f"{name}\t{one_line(value)}")
        return
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        say(f"{name:<{width}}  {one_line(value)}")


def _chosen_columns(columns: Sequence[Column], asked: str | None) -> list[Column]:
    if asked == "all":
        return list(columns)
    if asked in (None, "help"):
        return [column for column in columns if column.is_default]
    by_key = {column.key: column for column in columns}
    keys = [key.strip() for key in asked.split(",")]
    unknown = [key for key in keys if key not in by_key]
    if unknown:
        raise typer.BadParameter(
            f"no column {unknown[0]!r}; there are {', '.join(by_key)}", param_hint="--columns"
        )
    return [by_key[key] for key in keys]


def _cells(rows: Iterable[Json], columns: Sequence[Column]) -> Iterable[list[str]]:
    for row in rows:
        yield [column.cell(row) for column in columns]


def _print_rich_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, no_trunc: bool) -> None:
    from rich.console import Console  # only where a person looks: it costs start-up time
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        table.add_column(header, no_wrap=not no_trunc, overflow="fold" if no_trunc else "ellipsis")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    Console().print(table)
