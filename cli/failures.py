"""What a job's trials ended by: a line an exception, with how many and where to look."""

from __future__ import annotations

from typing import Any, cast

from cli.cells import member
from cli.client import Json
from cli.output import hint, print_table, say


def print_exceptions(job: Json) -> None:
    """Nothing for a job without any."""
    found = exceptions_of(job)
    if not found:
        return
    say()
    rows = ([kind, str(len(ids)), f"evolve trial show {ids[0]}"] for kind, ids in found.items())
    print_table(["exception", "trials", "the first"], rows)
    hint(
        f"why: evolve job trials {job.get('id')} --columns task,exception,message; "
        f"again: evolve job resume {job.get('id')} -f EXCEPTION"
    )


def exceptions_of(job: Json) -> dict[str, list[str]]:
    """Exception type → ids of the trials that ended by it, over all arms; the most frequent first."""
    found: dict[str, list[str]] = {}
    evals = member(member(job, "stats"), "evals")
    for key in evals:
        stats = member(member(evals, key), "exception_stats")
        for kind, ids in stats.items():
            found.setdefault(kind, []).extend(str(each) for each in cast("list[Any]", ids or []))
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))
