"""What a separate verifier costs over a shared one: the same task twice, one trial after the other.

Of a trial's wall time, since the fresh box, its artifacts' way and the agent's box's early end are all in
it; what agent and tests take is taken off.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import uuid4

from tests.bench.figures import Figure, print_table, say
from tests.bench.stacks import running_stack
from tests.running_platform import RunningPlatform

ROUNDS = 3
ATTEMPTS = 5
MODES = ("shared", "separate")


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Alternated rounds on each provider; the images are built before."""
    figures: list[Figure] = []
    with running_stack({}) as platform:
        platform.publish("modes", {path: text for mode in MODES for path, text in _task(mode).items()})
        for provider in ("docker", "local"):
            _run(platform, provider, "separate", attempts=1)
            samples: dict[str, list[float]] = {mode: [] for mode in MODES}
            for _ in range(rounds):
                for mode in MODES:
                    samples[mode].append(_run(platform, provider, mode))
            pairs = zip(samples["separate"], samples["shared"], strict=True)
            figures += [
                Figure(
                    f"trial's wall less agent and verifier, {provider}, {mode} verifier", samples[mode], "s"
                )
                for mode in MODES
            ]
            figures.append(
                Figure(f"a separate verifier costs, {provider}", [one - other for one, other in pairs], "s")
            )
    return figures


def _task(mode: str) -> dict[str, str]:
    toml = f"""\
artifacts = ["/app/out"]
[agent]
timeout_sec = 60
[verifier]
environment_mode = "{mode}"
[environment]
network_mode = "no-network"
"""
    return {
        f"{mode}/task.toml": toml,
        f"{mode}/instruction.md": "Write 42 into out/answer.\n",
        f"{mode}/environment/Dockerfile": "FROM evolve-test/debian:bookworm\nWORKDIR /app\n",
        f"{mode}/solution/solve.sh": "mkdir -p out && printf 42 >out/answer\n",
        f"{mode}/tests/test.sh": "[ $(cat /app/out/answer) = 42 ] && echo 1 >/logs/verifier/reward.txt\n",
    }


def _run(platform: RunningPlatform, provider: str, mode: str, attempts: int = ATTEMPTS) -> float:
    """The median trial's own seconds."""
    body = {
        "datasets": [{"name": "modes", "task_names": [mode]}],
        "agents": [{"name": "oracle"}],
        "n_attempts": attempts,
        "n_concurrent_trials": 1,
        "sandbox_provider": provider,
    }
    job = platform.await_job(platform.start_job(body, uuid4().hex), 300)
    trials = platform.trials(job["id"])
    assert all(trial["reward"] == 1.0 for trial in trials), [trial["exception_info"] for trial in trials]
    seconds = statistics.median(_own_sec(trial) for trial in trials)
    say(f"{mode} on {provider}: {seconds:.2f} s")
    return seconds


def _own_sec(trial: Mapping[str, Any]) -> float:
    return _span(trial) - _span(trial["agent_execution"]) - _span(trial["verifier"])


def _span(window: Mapping[str, Any]) -> float:
    begin, end = (datetime.fromisoformat(window[name]) for name in ("started_at", "finished_at"))
    return (end - begin).total_seconds()


if __name__ == "__main__":
    print_table(measure())
