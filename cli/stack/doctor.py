"""`evolve doctor`: what this machine can do, and what would keep the stack from working here."""

from __future__ import annotations

import platform
import shutil
import stat
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ValidationError

from cli.errors import CliError
from cli.machine_side import ProviderVerdict, provider_verdicts, settings_in_force
from cli.reaper_side import list_incidents, stranded_runs
from cli.stack.errors import StackError
from cli.stack.home import Home
from cli.stack.postgres import reachable_binaries
from cli.stack.settings import StackSettings
from cli.stack.status import stack_status
from cli.stack.temporal import EmbeddedTemporal

Verdict = Literal["ok", "warn", "fail"]
LOW_DISK_BYTES = 5 * 1024**3
# Below this Postgres and Temporal soon stop in the middle of a job.
MIN_DISK_BYTES = 1024**3


class Finding(BaseModel):
    """`check` is what was looked at, `what` the facts, or what to do."""

    check: str
    verdict: Verdict
    what: str

    def cells(self) -> tuple[str, ...]:
        """As the table shows it."""
        return (self.check, self.verdict, self.what)


async def examine() -> list[Finding]:
    """Everything, in the order of a start."""
    home = Home.from_environment()
    running = {process.name for process in (await stack_status(home)).processes if process.pid is not None}
    findings = [*_versions(), _home(home), _disk(home), _postgres(home), *_temporal(home, running)]
    findings.extend(_providers(await provider_verdicts()))
    findings.extend(await _needing_a_person())
    findings.extend(_settings())
    return findings


def _versions() -> Iterator[Finding]:
    yield Finding(check="evolve", verdict="ok", what=version("evolve-evals"))
    yield Finding(check="python", verdict="ok", what=f"{platform.python_version()}, {platform.platform()}")


def _home(home: Home) -> Finding:
    if not home.path.exists():
        return Finding(check="home", verdict="ok", what=f"{home.path}, made by the first `evolve up`")
    mode = stat.S_IMODE(home.path.stat().st_mode)
    if mode & 0o022:
        return Finding(
            check="home", verdict="fail", what=f"{home.path} can be written by others: chmod 700 it"
        )
    return Finding(check="home", verdict="ok", what=f"{home.path}, mode {mode:o}")


def _disk(home: Home) -> Finding:
    place = next(path for path in (home.path, *home.path.parents) if path.exists())
    free = shutil.disk_usage(place).free
    verdict: Verdict = "fail" if free < MIN_DISK_BYTES else "warn" if free < LOW_DISK_BYTES else "ok"
    return Finding(check="disk", verdict=verdict, what=f"{free / 1024**3:.1f} GiB free at {place}")


def _postgres(home: Home) -> Finding:
    try:
        binaries, uid = reachable_binaries(home)
    except StackError as error:
        return Finding(check="postgres", verdict="fail", what=error.message)
    user = "" if uid is None else f", as uid {uid} since it refuses root"
    return Finding(check="postgres", verdict="ok", what=f"{_first_line(binaries / 'postgres')}{user}")


def _temporal(home: Home, running: set[str]) -> Iterator[Finding]:
    try:
        temporal = EmbeddedTemporal.prepare(home, StackSettings())
    except (StackError, ValidationError) as error:
        yield Finding(check="temporal", verdict="fail", what=str(error))
        return
    yield Finding(check="temporal", verdict="ok", what=_first_line(temporal.binary))
    try:
        temporal.ports.check(running)
    except StackError as error:
        yield Finding(check="ports", verdict="fail", what=error.message)
        return
    numbers = ", ".join(f"{name} {number}" for name, number in temporal.ports.model_dump().items())
    yield Finding(check="ports", verdict="ok", what=numbers)


def _providers(verdicts: list[ProviderVerdict]) -> Iterator[Finding]:
    is_any = any(verdict.is_usable for verdict in verdicts)
    for verdict in verdicts:
        level: Verdict = "ok" if verdict.is_usable else "warn" if is_any else "fail"
        yield Finding(check=f"sandbox {verdict.name}", verdict=level, what=verdict.detail)
        for size, why in verdict.unenforced.items():
            yield Finding(check=f"{size} on {verdict.name}", verdict="warn", what=f"not enforced: {why}")


async def _needing_a_person() -> list[Finding]:
    """Runs that no living worker goes on with, and open incidents; nothing without a database."""
    try:
        stranded, incidents = await stranded_runs(), await list_incidents(is_open_only=True)
    except CliError as error:
        return [Finding(check="runs", verdict="ok", what=f"not looked at: {error}")]
    findings = [
        Finding(check="stranded run", verdict="warn", what=f"{run.workflow_id}: {run.why}")
        for run in stranded
    ]
    findings += [
        Finding(check=f"incident {row.kind}", verdict="warn", what=f"{row.subject}: {row.message}")
        for row in incidents
    ]
    return findings or [Finding(check="runs", verdict="ok", what="a living worker goes on with each")]


def _settings() -> Iterator[Finding]:
    try:
        for name, value in settings_in_force().items():
            yield Finding(check=name, verdict="ok", what=value)
    except ValidationError as error:
        for item in error.errors(include_input=False, include_url=False):
            name = "EVOLVE_" + "_".join(str(part) for part in item["loc"]).upper()
            yield Finding(check=name, verdict="fail", what=item["msg"])


def _first_line(program: Path) -> str:
    """What `program --version` says."""
    done = subprocess.run((program, "--version"), capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).strip().partition("\n")[0]
