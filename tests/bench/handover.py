"""How long an agent goes unfollowed when its worker is killed, and how soon one that is asked hands it on.

The agent prints without end: it is followed again when more of that is in the store. In it is what the
supervisor takes to start a worker and, after a kill, how long Temporal waits for a sign of life (15 s).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from temporalio.client import Client

from tests.bench.corpus import BASE_IMAGE
from tests.bench.figures import Figure, print_table
from tests.bench.stacks import running_stack
from tests.cli.stack_harness import is_alive, wait_until
from tests.factories import task_files
from tests.running_platform import RunningPlatform
from workflows.names import NAMESPACE, trial_workflow_id

TALK = "while :; do echo on and on; sleep 0.05; done\n"
READ = "SELECT coalesce(max(offset_bytes + length(data)), 0) AS n FROM stream_chunks WHERE trial_id = $1"
LOOK_EVERY_SEC = 0.01


def measure(rounds: int = 3) -> list[Figure]:
    """One trial goes through all of it: its agent runs once."""
    files = task_files("talker", solve=TALK, test="echo 0 >/logs/verifier/reward.txt\n")
    files["talker/environment/Dockerfile"] = f"FROM {BASE_IMAGE}\nWORKDIR /app\n"
    with running_stack({}) as platform:
        platform.publish("talker", files)
        job_id, trial_id = _start(platform)
        killed = [_kill(platform, trial_id) for _ in range(rounds)]
        asked = [_terminate(platform, trial_id) for _ in range(rounds)]
        platform.ask("POST", f"/api/jobs/{job_id}/cancel")
        platform.await_job(job_id)
    return [
        Figure("kill -9 of the worker to its agent followed again", killed, "s"),
        Figure("SIGTERM of the worker to its agent handed over", [handed for handed, _ in asked], "s", 5),
        Figure("SIGTERM of the worker to its agent followed again", [followed for _, followed in asked], "s"),
    ]


def _start(platform: RunningPlatform) -> tuple[str, str]:
    """A trial whose agent talks."""
    body: dict[str, Any] = {
        "datasets": [{"name": "talker"}],
        "agents": [{"name": "oracle"}],
        "sandbox_provider": "local",
    }
    job_id = platform.start_job(body, uuid4().hex)
    [trial] = platform.trials(job_id)
    wait_until(lambda: _read(platform, trial["id"]), "the agent talks")
    return job_id, trial["id"]


def _kill(platform: RunningPlatform, trial_id: str) -> float:
    platform.stack.await_healthy()
    pid = platform.stack.pids()["worker"]
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    _wait(lambda: not is_alive(pid))
    return _until_followed(platform, trial_id) - began


def _terminate(platform: RunningPlatform, trial_id: str) -> tuple[float, float]:
    """Until Temporal knows that the agent is anybody's, and until somebody has it."""
    platform.stack.await_healthy()
    pid, n_tries = platform.stack.pids()["worker"], asyncio.run(_tries(platform, trial_id))
    began = time.monotonic()
    os.kill(pid, signal.SIGTERM)
    asyncio.run(_tries(platform, trial_id, more_than=n_tries))
    handed = time.monotonic() - began
    _wait(lambda: not is_alive(pid))
    return handed, _until_followed(platform, trial_id) - began


def _until_followed(platform: RunningPlatform, trial_id: str) -> float:
    """When more than the dead worker stored is there."""
    stored = _read(platform, trial_id)
    _wait(lambda: _read(platform, trial_id) > stored)
    return time.monotonic()


def _read(platform: RunningPlatform, trial_id: str) -> int:
    return int(platform.rows(READ, trial_id)[0]["n"])


def _wait(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(LOOK_EVERY_SEC)


async def _tries(platform: RunningPlatform, trial_id: str, more_than: int = 0) -> int:
    """How often the following of the agent was begun, once that is more often."""
    port = platform.stack.environment["EVOLVE_TEMPORAL_PORT"]
    client = await Client.connect(f"127.0.0.1:{port}", namespace=NAMESPACE)
    handle = client.get_workflow_handle(trial_workflow_id(trial_id))
    while True:
        pending = (await handle.describe()).raw_description.pending_activities
        tries = max((each.attempt for each in pending), default=0)
        if tries > more_than:
            return tries
        await asyncio.sleep(LOOK_EVERY_SEC)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    print_table(measure(**vars(options.parse_args())))
