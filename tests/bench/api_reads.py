"""The API at ten thousand trials, over loopback with one connection kept alive.

The job that is read is as heavy as a job gets: all but one of its trials have settled, and it still runs,
so that nothing of it is kept from an earlier read.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

import asyncpg

from cli.stack.home import Home
from tests.bench.figures import Figure, percentile, print_table
from tests.bench.stacks import FAST, running_stack
from tests.factories import task_files
from tests.providers.fast import Barriers
from tests.running_platform import RunningPlatform

ROUNDS = 3
TASKS = 20
# What ten thousand settles leave, without the hour that they would take: one statement a table.
SETTLE = (
    """
UPDATE trials SET status = 'SCORED', reward = index % 2, started_at = now(), finished_at = now(),
  result = jsonb_build_object('verifier_result', jsonb_build_object('rewards',
           jsonb_build_object('reward', (index % 2)::float8)))
WHERE job_id = $1 AND index > 0
""",
    """
UPDATE job_groups SET n_settled = n_total - 1, n_rewarded = n_total - 1, reward_sum = n_total / 2
WHERE job_id = $1
""",
    """
UPDATE jobs SET by_status = by_status || jsonb_build_object('QUEUED', 0, 'SCORED', n_total_trials - 1)
WHERE id = $1
""",
)


def measure(trials: int = 10_000, reads: int = 100) -> list[Figure]:
    """Create three jobs of `trials`, then read each thing `reads` times in each of three rounds."""
    with running_stack(FAST) as platform:
        # The first trial waits before its box is made; the others wait for it.
        Barriers(platform.stack.home / "state" / "fast" / "barriers").hold("create")
        files: dict[str, str] = {}
        for number in range(TASKS):
            files |= task_files(f"task-{number:02}")
        platform.publish("reads", files)
        created = [_create(platform, trials, number) for number in range(ROUNDS)]
        job_id = created[-1][0]
        asyncio.run(_settle(platform, job_id))
        routes = {
            "page of 100 trials": f"/api/jobs/{job_id}/trials?limit=100",
            "job get": f"/api/jobs/{job_id}",
            "job list": "/api/jobs",
        }
        p95: dict[str, list[float]] = {name: [] for name in routes}
        for _ in range(ROUNDS):
            for name, route in routes.items():
                p95[name].append(percentile([_read_ms(platform, route) for _ in range(reads)], 95))
    figures = [Figure(f"job create, {trials} trials", [sec for _, sec in created], "s", 2)]
    return figures + [Figure(f"{name}, p95", samples, "ms", 50) for name, samples in p95.items()]


def _create(platform: RunningPlatform, trials: int, number: int) -> tuple[str, float]:
    body: dict[str, Any] = {
        "datasets": [{"name": "reads"}],
        "agents": [{"name": "nop"}],
        "n_attempts": trials // TASKS,
        "n_concurrent_trials": 1,
    }
    began = time.perf_counter()
    job_id = platform.start_job(body, f"job-{number}")
    return job_id, time.perf_counter() - began


def _read_ms(platform: RunningPlatform, route: str) -> float:
    began = time.perf_counter()
    platform.ask("GET", route)
    return (time.perf_counter() - began) * 1000


async def _settle(platform: RunningPlatform, job_id: str) -> None:
    connection = await asyncpg.connect(Home(platform.stack.home).database_url)
    for statement in SETTLE:
        await connection.execute(statement, job_id)
    # Autovacuum would come to it; here it would come into a round.
    await connection.execute("VACUUM ANALYZE")
    await connection.close()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trials", type=int, default=10_000)
    options.add_argument("--reads", type=int, default=100)
    print_table(measure(**vars(options.parse_args())))
