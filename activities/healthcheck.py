"""A task's healthcheck: the agent, or a separate verifier, starts only in an environment that is up."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from activities.sandboxes.base import Box
from domain.errors import HealthcheckFailed
from domain.task_config import HealthcheckConfig

# $1 is the command, the rest are variables that it must not see.
PROBE = 'command=$1; shift; [ $# -eq 0 ] || unset "$@"; exec sh -c "$command"'
SAID_CHARS = 500


@dataclass(frozen=True)
class _Answer:
    is_healthy: bool
    said: str


async def await_healthy(
    box: Box, check: HealthcheckConfig, user: str | None, hidden: Collection[str] = ()
) -> None:
    """Ask until it is healthy. Raises `HealthcheckFailed` when the retries are used up.

    A failure that began inside the start period does not count. `hidden` names variables of the box that
    the command does not see: in a box of one container those of `[environment.env]` (contract 6.8).
    """
    clock = asyncio.get_running_loop().time
    started_at, n_failures = clock(), 0
    while True:
        is_starting = clock() - started_at < check.start_period_sec
        answer = await _probe(box, check, user, hidden)
        if answer.is_healthy:
            return
        if not is_starting:
            n_failures += 1
            if n_failures >= max(1, check.retries):
                raise HealthcheckFailed(f"the healthcheck failed {n_failures} times: {answer.said}")
        await asyncio.sleep(check.start_interval_sec if is_starting else check.interval_sec)


async def _probe(box: Box, check: HealthcheckConfig, user: str | None, hidden: Collection[str]) -> _Answer:
    argv = ["sh", "-c", PROBE, "healthcheck", check.command, *sorted(hidden)]
    try:
        result = await box.run(argv, user=user, timeout_sec=check.timeout_sec)
    except TimeoutError:
        return _Answer(False, f"no answer within {check.timeout_sec:g} s")
    said = (result.stderr or result.stdout).decode(errors="replace").strip()[-SAID_CHARS:]
    return _Answer(result.exit_code == 0, f"exit code {result.exit_code}{': ' if said else ''}{said}")
