"""From the request to cancel a job until its agent's process is dead, as this machine's /proc sees it."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.bench.corpus import BASE_IMAGE
from tests.bench.figures import Figure, print_table
from tests.bench.stacks import running_stack
from tests.cli.stack_harness import wait_until
from tests.factories import task_files
from tests.running_platform import RunningPlatform

PROVIDERS = ("local", "docker")
LOOK_EVERY_SEC = 0.01


def measure(rounds: int = 3) -> list[Figure]:
    """One job a round on each provider in turn."""
    nap = f"86400.{uuid4().int % 10**9:09}"
    files = task_files("sleeper", solve=f"exec sleep {nap}\n", test="echo 0 >/logs/verifier/reward.txt\n")
    files["sleeper/environment/Dockerfile"] = f"FROM {BASE_IMAGE}\nWORKDIR /app\n"
    samples: dict[str, list[float]] = {provider: [] for provider in PROVIDERS}
    with running_stack({}) as platform:
        platform.publish("sleeper", files)
        for _ in range(rounds):
            for provider in PROVIDERS:
                samples[provider].append(_cancel_sec(platform, provider, nap))
    return [Figure(f"cancel to process dead, {name}", sec, "s", 2) for name, sec in samples.items()]


def _cancel_sec(platform: RunningPlatform, provider: str, nap: str) -> float:
    body: dict[str, Any] = {
        "datasets": [{"name": "sleeper"}],
        "agents": [{"name": "oracle"}],
        "sandbox_provider": provider,
    }
    job_id = platform.start_job(body, uuid4().hex)
    wait_until(lambda: _sleeps(nap), "the agent runs")
    began = time.monotonic()
    platform.ask("POST", f"/api/jobs/{job_id}/cancel")
    while _sleeps(nap):
        time.sleep(LOOK_EVERY_SEC)
    sec = time.monotonic() - began
    platform.await_job(job_id)
    return sec


def _sleeps(nap: str) -> bool:
    """Whether a process `sleep NAP` lives, in whatever box."""
    wanted = b"sleep\0" + nap.encode() + b"\0"
    return any(_command(path) == wanted for path in Path("/proc").glob("[0-9]*/cmdline"))


def _command(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=3)
    print_table(measure(**vars(options.parse_args())))
