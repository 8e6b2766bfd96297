"""`evolve up`, `down`, `status`, `doctor`: the whole platform on this machine.

They are for the machine that runs the server: the packages of `evolve-evals[server]` must be there.
"""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import JsonFlag
from cli.output import hint, print_json, print_table, say

if TYPE_CHECKING:
    from cli.stack.home import Home
    from cli.stack.ports import StackPorts

# A cancel passes through each of them.
ENDING_JOBS = ("temporal", "api", "worker")
REPORT_TO = typer.Option(hidden=True, help="Descriptor to report the start to.")


def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when all is up.")] = False,
    report_fd: Annotated[int | None, REPORT_TO] = None,
) -> None:
    """Start the whole platform on this machine: Postgres, Temporal, gateway, API and worker.

    Data and logs are under EVOLVE_HOME (default ~/.evolve). In the foreground Ctrl-C stops all;
    with --detach, `evolve down` does. Ports: EVOLVE_API_PORT, EVOLVE_GATEWAY_PORT,
    EVOLVE_TEMPORAL_PORT, EVOLVE_TEMPORAL_UI_PORT.
    """
    from cli.stack import detached
    from cli.stack.supervisor import run_supervisor

    if detach:
        say_ready(*detached.start(say))
    elif report_fd is not None:
        reporter = detached.Reporter(report_fd)
        with reporter.reporting_failure():
            run_supervisor(reporter.tell, reporter.ready)
    else:
        run_supervisor(tell, say_ready)


def down(
    stop_trials: Annotated[
        bool, typer.Option("--stop-trials", help="Cancel running jobs and wait for their end first.")
    ] = False,
) -> None:
    """Stop every process in order. Boxes go on under their own deadline; `evolve up` follows them again."""
    from cli.stack.stopping import stop_stack

    if stop_trials:
        asyncio.run(_stop_trials())
    if not stop_stack(say):
        hint("nothing is running")


async def _stop_trials() -> None:
    from cli import store_side
    from cli.stack.home import Home
    from cli.stack.status import stack_status

    health = {each.name: each.health for each in (await stack_status(Home.from_environment())).processes}
    away = [name for name in ENDING_JOBS if health[name] != "healthy"]
    if away:
        hint(f"not healthy: {', '.join(away)}; without it no job ends")
    patience = store_side.CANCEL_PATIENCE_WHILE_AWAY_SEC if away else store_side.CANCEL_PATIENCE_SEC
    await store_side.cancel_all_jobs(say, patience)


def status(as_json: JsonFlag = False) -> None:
    """List the processes: URL, pid, health, log file. Exit code 0 when all are healthy, else 1."""
    from cli.stack.home import Home
    from cli.stack.status import stack_status

    found = asyncio.run(stack_status(Home.from_environment()))
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        headers = ("process", "health", "pid", "restarts", "url", "log")
        print_table(headers, [process.cells() for process in found.processes])
    if not found.is_healthy:
        raise typer.Exit(1)


def doctor(as_json: JsonFlag = False) -> None:
    """Check this machine: versions, ports, sandbox providers, disk, settings (secrets hidden).

    Exit code 1 when something keeps the stack from working here.
    """
    from cli.stack.doctor import examine

    findings = asyncio.run(examine())
    if as_json:
        print_json([finding.model_dump() for finding in findings])
    else:
        print_table(("check", "verdict", "what"), [finding.cells() for finding in findings])
    if any(finding.verdict == "fail" for finding in findings):
        raise typer.Exit(1)


def tell(line: str) -> None:
    """A line on what happened; with its time where it goes to a log."""
    say(line if sys.stdout.isatty() else f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}")


def say_ready(home: Home, ports: StackPorts) -> None:
    """Where everything is. The credentials file's path, never what it holds."""
    say()
    say(f"API          {ports.url('api')}")
    say(f"Temporal UI  {ports.url('temporal')}/namespaces/evolve/workflows")
    say(f"credentials  {home.credentials}")
    say(f"logs         {home.path / 'logs'}")
