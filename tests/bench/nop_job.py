"""What the platform itself costs: a `nop` job through every phase, whose boxes are directories.

The first and the last hundred are taken where the job's window is full (after as many settles as it is
wide, and that many before the end), so that both hold whole trials.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import Client

from domain.vocabulary import TRIAL_TERMINAL
from tests.bench import bare_temporal
from tests.bench.cpu import tree_cpu_ms, trees_cpu_ms
from tests.bench.figures import Figure, print_table, say
from tests.bench.stacks import FAST, running_stack
from tests.cli.stack_harness import CHILDREN
from tests.factories import task_files
from tests.running_platform import RunningPlatform
from workflows import names

TASKS = 20
LOOK_EVERY_SEC = 0.2
BARE_TRIALS = 300


@dataclass(frozen=True)
class Look:
    """How far the job was when so much CPU had been spent."""

    n_settled: int
    cpu_ms: float


def measure(trials: int = 2_000, width: int = 50) -> list[Figure]:
    """Run one job of `trials` trials, `width` at once."""
    with running_stack(FAST) as platform:
        platform.publish("nop", _tasks())
        roots = platform.stack.pids()
        supervisor = platform.stack.record("supervisor")
        assert supervisor is not None
        before, began = trees_cpu_ms(roots), time.monotonic()
        job_id = _start(platform, trials, width)
        looks = _follow(platform, job_id, supervisor)
        wall = time.monotonic() - began
        spent = {name: (after - before[name]) / trials for name, after in trees_cpu_ms(roots).items()}
        histories = asyncio.run(_histories(platform, job_id))
        address, temporal = _temporal_address(platform), platform.stack.record("temporal")
        assert temporal is not None
        bare = bare_temporal.measure(address, "evolve", temporal, min(trials, BARE_TRIALS), width)
    say(f"nop job: {trials} trials, {width} at once: {wall:.1f} s; CPU-ms by process: {_parts(spent)}")
    for events, size in histories:
        say(f"nop job: a job run of {events} events, {size / 1000:.0f} kB")
    per_trial = sum(spent.values())
    return [
        *_figures(looks, width, per_trial, histories),
        Figure("nop job: bare Temporal of the same shape, per trial", [bare], "CPU-ms"),
        Figure("nop job: all processes / bare Temporal", [per_trial / bare], "×"),
    ]


def _tasks() -> dict[str, str]:
    files: dict[str, str] = {}
    for number in range(TASKS):
        files |= task_files(f"task-{number:02}")
    return files


def _start(platform: RunningPlatform, trials: int, width: int) -> str:
    body: dict[str, Any] = {
        "datasets": [{"name": "nop"}],
        "agents": [{"name": "nop"}],
        "n_attempts": trials // TASKS,
        "n_concurrent_trials": width,
    }
    return platform.start_job(body, "nop")


def _follow(platform: RunningPlatform, job_id: str, supervisor: int) -> list[Look]:
    """Looks at the job until it has ended; a look is one row by its key."""
    looks: list[Look] = []
    query = "SELECT status, by_status FROM jobs WHERE id = $1"
    while True:
        [row] = platform.rows(query, job_id)
        n_settled = sum(row["by_status"][status] for status in TRIAL_TERMINAL)
        looks.append(Look(n_settled, tree_cpu_ms(supervisor)))
        if row["status"] == "COMPLETED":
            return looks
        time.sleep(LOOK_EVERY_SEC)


def _cost_between(looks: Sequence[Look], first: int, last: int) -> float:
    """CPU-ms per settled trial between two counts of settles, at the nearest looks outside."""
    begin = max((look for look in looks if look.n_settled <= first), key=lambda look: look.n_settled)
    end = min((look for look in looks if look.n_settled >= last), key=lambda look: look.n_settled)
    return (end.cpu_ms - begin.cpu_ms) / (end.n_settled - begin.n_settled)


async def _histories(platform: RunningPlatform, job_id: str) -> list[tuple[int, int]]:
    """Events and bytes of each run of the job's workflow."""
    client = await Client.connect(
        _temporal_address(platform), namespace="evolve", data_converter=names.DATA_CONVERTER
    )
    found: list[tuple[int, int]] = []
    async for run in client.list_workflows(f"WorkflowId = '{names.job_workflow_id(job_id)}'"):
        described = await client.get_workflow_handle(run.id, run_id=run.run_id).describe()
        info = described.raw_description.workflow_execution_info
        found.append((info.history_length, info.history_size_bytes))
    return found


def _temporal_address(platform: RunningPlatform) -> str:
    return f"127.0.0.1:{platform.stack.environment['EVOLVE_TEMPORAL_PORT']}"


def _parts(spent: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {spent[name]:.1f}" for name in CHILDREN if name in spent)


def _figures(
    looks: Sequence[Look], width: int, per_trial: float, histories: Sequence[tuple[int, int]]
) -> list[Figure]:
    total = looks[-1].n_settled
    first = _cost_between(looks, width, width + 100)
    last = _cost_between(looks, total - width - 100, total - width)
    return [
        Figure("nop job: all processes, per trial", [per_trial], "CPU-ms", 90),
        Figure("nop job: first hundred, per trial", [first], "CPU-ms"),
        Figure("nop job: last hundred, per trial", [last], "CPU-ms"),
        Figure("nop job: last hundred / first hundred", [last / first], "×", 1.2),
        Figure("nop job: history of a job run, largest", [max(e for e, _ in histories)], "events"),
        Figure("nop job: history of a job run, largest", [max(s for _, s in histories) / 1000], "kB"),
    ]


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trials", type=int, default=2_000)
    options.add_argument("--width", type=int, default=50)
    print_table(measure(**vars(options.parse_args())))
