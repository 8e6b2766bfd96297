"""Whatever process is killed, and wherever a trial stands then: it ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from domain.vocabulary import AttemptPhase
from tests.chaos.held_trials import N_ATTEMPTS, PLACES, PREPARE, Ground, HeldTrials, chaos_ground
from tests.cli.stack_harness import CHILDREN, is_alive, wait_until
from workflows import options

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(400)]

_LOCK_DATASETS = "SELECT FROM datasets FOR UPDATE"
_WAITS_FOR_DATASETS = (
    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM datasets WHERE%'"
)
# A phase is held in one place, or in two of which each has its own dangers.
PLACES_OF = {
    phase: [place for place, (of, _) in PLACES.items() if of == phase] or [PREPARE] for phase in AttemptPhase
}


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    with chaos_ground() as made:
        yield made


@pytest.fixture(scope="module", params=["worker", "api", "temporal", "postgres"])
def after_kill(ground: Ground, request: pytest.FixtureRequest) -> HeldTrials:
    """Jobs with trials in every phase, ended, though the process was killed at that moment."""
    with ground.trials_in_every_phase() as held:
        ground.stack.kill(request.param)
    held.end()
    return held


@pytest.mark.parametrize("phase", list(AttemptPhase))
def test_a_trial_ends_as_if_nothing_was_killed(after_kill: HeldTrials, phase: AttemptPhase) -> None:
    assert [fault for place in PLACES_OF[phase] for fault in after_kill.faults(place)] == []


def test_its_jobs_are_whole_and_nothing_is_left(after_kill: HeldTrials, ground: Ground) -> None:
    assert after_kill.faults_of_jobs() == []
    ground.await_nothing_left()


def test_a_worker_killed_while_it_accepts_a_job_delays_it_by_a_heartbeat(ground: Ground) -> None:
    """Not by the time that accepting may take."""
    with ground.platform.holding(_LOCK_DATASETS):
        ground.start_by_temporal("accepted", ["judge"])
        wait_until(lambda: ground.platform.rows(_WAITS_FOR_DATASETS), "the job waits to be accepted", 30)
        ground.stack.kill("worker")
    accepted_within_sec = options.ACCEPT.start_to_close.total_seconds() / 2
    query = "SELECT id FROM jobs WHERE workflow_id = 'accepted'"
    [job] = wait_until(lambda: ground.platform.rows(query), "the job is accepted", accepted_within_sec)
    ended = ground.platform.await_job(job["id"])
    assert (ended["status"], ended["trials"]["byStatus"]["SCORED"]) == ("COMPLETED", N_ATTEMPTS)
    ground.await_nothing_left()


def test_down_and_up_in_the_middle_changes_nothing(ground: Ground) -> None:
    with ground.trials_in_every_phase() as held:
        ground.stack.down()
    ground.stack.up()
    held.end()
    assert_undisturbed(ground, held)


def test_a_supervisor_and_then_all_else_is_killed(ground: Ground) -> None:
    with ground.trials_in_every_phase() as held:
        for name in ("supervisor", *CHILDREN):
            ground.stack.kill(name)
    ground.stack.up()
    held.end()
    assert_undisturbed(ground, held)


def test_a_killed_supervisor_is_not_missed_by_the_trials(ground: Ground) -> None:
    with ground.trials_in_every_phase() as held:
        ground.stack.kill("supervisor")
    held.end()
    assert_undisturbed(ground, held)
    ground.stack.up()


def test_a_frozen_worker_changes_nothing_that_its_successor_wrote(ground: Ground) -> None:
    frozen = ground.stack.pids()["worker"]
    with ground.trials_in_every_phase() as held:
        os.kill(frozen, signal.SIGSTOP)
    try:
        with second_worker(frozen, ground.stack.home):
            held.end()
            assert_undisturbed(ground, held)
            before = ground.records()
    finally:
        os.kill(frozen, signal.SIGCONT)
    # It works again, alone: whatever it had in its hands when it froze it has tried to do by then.
    with ground.trials_in_every_phase() as later:
        pass
    later.end()
    assert_undisturbed(ground, later)
    after = ground.records()
    assert {name: [row for row in rows if row not in after[name]] for name, rows in before.items()} == {
        name: [] for name in before
    }


def assert_undisturbed(ground: Ground, held: HeldTrials) -> None:
    assert [fault for place in (*PLACES, PREPARE) for fault in held.faults(place)] == []
    assert held.faults_of_jobs() == []
    ground.await_nothing_left()


@contextmanager
def second_worker(pid: int, home: Path) -> Iterator[None]:
    """Another worker process of the same host, as a replacement whose predecessor hangs."""
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    environment = dict(entry.split("=", 1) for entry in entries if "=" in entry)
    environment["EVOLVE_HEALTH_SOCKET"] = str(home / "run" / f"w-{uuid4().hex[:6]}.sock")
    argv = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    with (home / "logs" / "second-worker.log").open("ab") as log:
        worker = subprocess.Popen(argv, env=environment, cwd=home, stdout=log, stderr=log)
    try:
        yield
    finally:
        worker.terminate()
        worker.wait(60)
    wait_until(lambda: not is_alive(worker.pid), "the second worker is gone", 10)
