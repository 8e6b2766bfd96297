"""Every harness runs for real: installed from the registry, through the gateway, verified, billed exactly,
its home kept whole, its trajectory judged by Harbor.

`make test` runs each on one provider, both providers in all; `make test-full` runs all of them on docker and
local, as root and not, on glibc and musl images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness_runs import (
    HARNESSES,
    Place,
    check_run,
    check_trajectories,
    harness_platform,
    run_harnesses,
)

pytestmark = [pytest.mark.stack, pytest.mark.root, pytest.mark.timeout(900)]

SHORT = {
    Place("local"): ("claude", "gemini", "kimi", "droid"),
    Place("docker", is_root=False): ("codex", "qwen"),
    Place("docker", libc="musl"): ("opencode",),
}
FULL = [
    Place("docker"),
    Place("docker", is_root=False),
    Place("docker", libc="musl"),
    Place("docker", libc="musl", is_root=False),
    Place("local"),
    Place("local", is_root=False),
]


def mark(place: Place, *marks: pytest.MarkDecorator) -> Any:
    on_engine = (pytest.mark.docker,) if place.provider == "docker" else ()
    return pytest.param(place, marks=[*on_engine, *marks], id=f"{place.provider}-{place.task}")


@pytest.mark.parametrize("place", [mark(place) for place in SHORT])
def test_each_harness_solves_a_task_and_is_billed_what_its_model_used(place: Place, tmp_path: Path) -> None:
    check_all(place, SHORT[place], tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("place", [mark(place) for place in FULL])
def test_every_harness_does_so_everywhere(place: Place, tmp_path: Path) -> None:
    check_all(place, HARNESSES, tmp_path)


def check_all(place: Place, harnesses: tuple[str, ...], folder: Path) -> None:
    with harness_platform(place.provider) as platform:
        runs = run_harnesses(platform, place, harnesses)
        failed: list[str] = []
        for harness in harnesses:
            try:
                check_run(platform, harness, runs[harness])
            except AssertionError as error:
                failed.append(f"{harness}: {error}")
        assert not failed, "\n".join(failed)
        check_trajectories(platform, {harness: runs[harness] for harness in harnesses}, folder)
        total = sum(runs[harness]["agent_result"]["cost_usd"] for harness in harnesses)
        assert runs["job"]["stats"]["cost_usd"] == pytest.approx(total, abs=1e-12)
        assert platform.left_in_the_store() == {}
