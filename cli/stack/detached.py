"""`evolve up --detach`: a supervisor in a session of its own that reports its start through a pipe."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime

import typer

from cli.stack.errors import StackError
from cli.stack.home import Home
from cli.stack.identity import SUPERVISOR
from cli.stack.keeper import READY_TIMEOUT_SEC
from cli.stack.logs import tail
from cli.stack.ports import StackPorts
from cli.stack.record import StackRecord
from cli.stack.settings import environment_for_elsewhere
from cli.stack.status import stack_status
from domain.errors import EvolveError

POLL_SEC = 0.2
# The report's last line.
READY, FAILED = "READY", "FAILED "


class Reporter:
    """The supervisor's side: what happens goes to its log, and until the start is over also to the pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def tell(self, line: str) -> None:
        typer.echo(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}")
        self._write(line)

    def ready(self, _home: Home, _ports: StackPorts) -> None:
        self._write(READY)
        self._close()

    @contextmanager
    def reporting_failure(self) -> Generator[None]:
        try:
            yield
        except EvolveError as error:
            self._write(f"{FAILED}{error.code} {' '.join(error.message.split())}")
            raise
        finally:
            self._close()

    def _write(self, line: str) -> None:
        if self._descriptor is None:
            return
        try:
            os.write(self._descriptor, f"{line}\n".encode())
        except BrokenPipeError:
            # Who asked for the start has left; the stack stays up all the same.
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def start(
    told: Callable[[str], None], environment: Mapping[str, str] | None = None
) -> tuple[Home, StackPorts]:
    """Start a supervisor, unless one lives; returns when all is up. Raises `StackError` of what failed.

    `environment` is what it runs with, ours by default.
    """
    home = Home.from_environment()
    home.make()
    if home.supervisor_lives():
        told(f"the stack of {home.path} is already running, with the settings that it was started with")
        asyncio.run(_await_healthy(home))
    else:
        _await_report(_spawn(home, environment or environment_for_elsewhere()), home, told)
    record = StackRecord.read(home.stack_record)
    if record is None:
        raise StackError(f"the stack of {home.path} is starting or stopping: see `evolve status`")
    return home, record.ports


async def _await_healthy(home: Home) -> None:
    """Who started it may not be done yet."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_SEC):
            found = await stack_status(home)
            while not found.is_healthy:
                await asyncio.sleep(POLL_SEC)
                found = await stack_status(home)
    except TimeoutError:
        raise StackError(f"the stack of {home.path} is up, but not healthy: see `evolve status`") from None


def _spawn(home: Home, environment: Mapping[str, str]) -> int:
    reading, writing = os.pipe()
    try:
        with open(home.log(SUPERVISOR), "ab") as log:
            subprocess.Popen(
                (sys.executable, "-P", "-m", "cli.main", "up", "--report-fd", str(writing)),
                cwd=home.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, "EVOLVE_HOME": str(home.path), "PYTHONUNBUFFERED": "1"},
                pass_fds=(writing,),
                start_new_session=True,
            )
    finally:
        os.close(writing)
    return reading


def _await_report(reading: int, home: Home, told: Callable[[str], None]) -> None:
    with open(reading, encoding="utf-8") as report:
        for line in report:
            line = line.rstrip("\n")
            if line == READY:
                return
            if line.startswith(FAILED):
                code, _, message = line.removeprefix(FAILED).partition(" ")
                raise StackError(message, code=code)
            told(line)
    log = home.log(SUPERVISOR)
    raise StackError(f"the supervisor ended without a word; the end of {log}: {tail(log)}")
