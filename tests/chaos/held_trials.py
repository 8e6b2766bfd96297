"""Trials held in every phase at once, on a stack whose boxes are directories; and how they must end."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Client

from domain.vocabulary import AttemptPhase
from tests.cli.stack_harness import Stack, temporary_stack, wait_until
from tests.factories import TASK_TOML, task_files
from tests.providers.fast import Barriers
from tests.running_platform import OWN_SOURCE, RunningPlatform
from workflows import names

# A held place → (the phase that the store then shows, the fast provider's barrier). `prepare` calls no
# provider: it is held by a lock on the hosts' rows.
PLACES: dict[str, tuple[AttemptPhase, str]] = {
    "build": (AttemptPhase.BUILD, "build"),
    "create": (AttemptPhase.BOOT, "create"),
    "boot": (AttemptPhase.BOOT, "boot"),
    "install": (AttemptPhase.INSTALL, "install"),
    "agent": (AttemptPhase.AGENT, "agent"),
    "verify": (AttemptPhase.VERIFY, "verifier"),
    "hand-over": (AttemptPhase.VERIFY, "collect-0"),
    "give-room": (AttemptPhase.VERIFY, "persist"),
    "fresh-box": (AttemptPhase.VERIFY, "create-verifier"),
    "judge": (AttemptPhase.VERIFY, "verifier"),
    "second-setup": (AttemptPhase.INSTALL, "setup-2"),
    "second-agent": (AttemptPhase.AGENT, "agent-2"),
    "second-verify": (AttemptPhase.VERIFY, "verifier-2"),
    "persist": (AttemptPhase.PERSIST, "persist"),
}
PREPARE = "prepare"
# Those whose verifier has a box of its own.
SEPARATE = ("hand-over", "give-room", "fresh-box", "judge")
SEPARATE_TOML = """
artifacts = ["/app/solved"]
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "make /logs/artifacts/collected"
[environment]
network_mode = "no-network"
"""
# Those of two steps, which are held in the second.
STEPPED = ("second-setup", "second-agent", "second-verify")
STEPS_TOML = f'{TASK_TOML}[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
DATASET = "held"
N_ATTEMPTS = 2

_LOCK_HOSTS = "SELECT FROM hosts FOR UPDATE"
_WAITS_FOR_HOSTS = (
    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%FROM hosts WHERE%'"
)
_STATISTICS = (
    "SELECT n_total, n_settled, n_rewarded, n_errors, reward_sum FROM job_groups WHERE job_id = ANY($1)"
)
# Everything that a trial leaves in the store, to be compared.
_RECORDS = {
    "trials": "SELECT * FROM trials ORDER BY id",
    "jobs": "SELECT id, status, by_status, totals, last_seq, finished_at FROM jobs ORDER BY id",
    "groups": "SELECT * FROM job_groups ORDER BY job_id, evals_key",
    "events": "SELECT * FROM job_events ORDER BY job_id, seq",
    "files": "SELECT * FROM trial_files ORDER BY trial_id, path",
    "traces": "SELECT * FROM trace_events ORDER BY trial_id, seq",
    "rooms": "SELECT * FROM box_leases ORDER BY name",
    "chunks": "SELECT trial_id, name, offset_bytes FROM stream_chunks ORDER BY 1, 2, 3",
}


@dataclass
class HeldTrials:
    """Two trials in each place, of two jobs. `end()` waits for both; the rest asks how it went."""

    ground: Ground
    job_ids: list[str]
    jobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def end(self) -> None:
        self.jobs = [self.ground.platform.await_job(job_id) for job_id in self.job_ids]

    def trials(self, place: str) -> list[dict[str, Any]]:
        """The store's rows of the two trials that were held there."""
        query = "SELECT * FROM trials WHERE job_id = ANY($1) AND task_name = $2 ORDER BY index"
        return self.ground.platform.rows(query, self.job_ids, place)

    def faults(self, place: str) -> list[str]:
        """How the trials of a place are not what an undisturbed run leaves."""
        rows = self.trials(place)
        found = [] if len(rows) == N_ATTEMPTS else [f"{len(rows)} trials"]
        for row in rows:
            is_right = (row["status"], row["reward"], row["attempt_number"]) == ("SCORED", 1.0, 1)
            is_over = row["phase"] is None and row["finished_at"] is not None
            if not (is_right and is_over):
                found.append(f"{row['id']}: {row['status']} {row['reward']} {row['phase']} {row['result']}")
            found += self._faults_of_events(row)
            executed = self.ground.executions(row["id"])
            if executed != dict.fromkeys(_commands(place), 1):
                found.append(f"{row['id']}: executed {dict(executed)}")
            files = self.ground.platform.trial_files(row["id"])
            for folder in ("steps/one/", "steps/two/") if place in STEPPED else ("",):
                printed = files.get(f"{folder}verifier/test-stdout.txt")
                if printed != b"tested\n":
                    found.append(f"{row['id']}: the verifier's output is {printed!r}")
        return found

    def _faults_of_events(self, row: dict[str, Any]) -> list[str]:
        events = self.ground.platform.rows(
            "SELECT type FROM job_events WHERE job_id = $1 AND payload ->> 'trial_id' = $2"
            " AND type <> 'trial.waiting' ORDER BY seq",
            row["job_id"],
            row["id"],
        )
        types = [event["type"] for event in events]
        expected = ["trial.running", "trial.scoring", "trial.settled"]
        return [] if types == expected else [f"{row['id']}: events {types}"]

    def faults_of_jobs(self) -> list[str]:
        """How the jobs as a whole are not what an undisturbed run leaves."""
        found = [str(job) for job in self.jobs if job["status"] != "COMPLETED"]
        for job in self.jobs:
            n = job["n_total_trials"]
            [tally] = self.ground.platform.rows("SELECT by_status FROM jobs WHERE id = $1", job["id"])
            if {status: count for status, count in tally["by_status"].items() if count} != {"SCORED": n}:
                found.append(f"{job['id']}: {tally}")
            query = "SELECT seq FROM job_events WHERE job_id = $1 ORDER BY seq"
            seqs = [row["seq"] for row in self.ground.platform.rows(query, job["id"])]
            if seqs != list(range(1, 3 * n + 4)):
                found.append(f"{job['id']}: events {seqs}")
        for row in self.ground.platform.rows(_STATISTICS, self.job_ids):
            n = row["n_total"]
            if (row["n_settled"], row["n_rewarded"], row["n_errors"], row["reward_sum"]) != (n, n, 0, n):
                found.append(f"statistics {row}")
        return found


class Ground:
    """A stack on the fast provider with one task a place, and a key for each round."""

    def __init__(self, stack: Stack, platform: RunningPlatform) -> None:
        self.stack = stack
        self.platform = platform
        self._state = stack.home / "state" / "fast"
        self.barriers = Barriers(self._state / "barriers")
        self._round = 0
        tasks: dict[str, str] = {}
        for place in (*PLACES, PREPARE):
            tasks |= {**_files(place), f"{place}/environment/barrier": place}
        platform.publish(DATASET, tasks)

    @contextmanager
    def trials_in_every_phase(self) -> Iterator[HeldTrials]:
        """All of them are held when the block begins, and let go at its end."""
        self._round += 1
        for place, (_, barrier) in PLACES.items():
            self.barriers.hold(f"{barrier}.{place}")
        job_id = self._start(list(PLACES))
        for place, (phase, barrier) in PLACES.items():
            self._await_held(job_id, place, phase, f"{barrier}.{place}")
        # A database that is killed in the block has given the lock back itself.
        with self.platform.holding(_LOCK_HOSTS):
            held = HeldTrials(self, [job_id, self._start([PREPARE])])
            wait_until(lambda: self.platform.rows(_WAITS_FOR_HOSTS), "a trial waits in prepare", 30)
            yield held
        self.release()

    def _start(self, tasks: list[str]) -> str:
        return self.platform.start_job(_body(tasks), f"round-{self._round}-{len(tasks)}")

    def start_by_temporal(self, workflow_id: str, tasks: list[str]) -> None:
        """As a client of Temporal does, whose job is accepted by its workflow."""

        async def start() -> None:
            address = f"127.0.0.1:{self.stack.environment['EVOLVE_TEMPORAL_PORT']}"
            client = await Client.connect(address, namespace=names.NAMESPACE)
            await client.start_workflow(
                names.JOB_WORKFLOW, _body(tasks), id=workflow_id, task_queue=names.QUEUE
            )

        asyncio.run(start())

    def _await_held(self, job_id: str, place: str, phase: AttemptPhase, barrier: str) -> None:
        query = "SELECT count(*) AS n FROM trials WHERE job_id = $1 AND task_name = $2 AND phase = $3"

        def is_held() -> bool:
            reached = self.barriers.reached(barrier)
            return reached and self.platform.rows(query, job_id, place, phase.value)[0]["n"] == N_ATTEMPTS

        wait_until(is_held, f"both trials of {place!r} are held in {phase.value}", 60)

    def release(self) -> None:
        for place, (_, barrier) in PLACES.items():
            self.barriers.release(f"{barrier}.{place}")
            self.barriers.forget(f"{barrier}.{place}")

    def executions(self, trial_id: str) -> Counter[str]:
        """How often each command of a trial was started, whatever box it was in."""
        lines = (self._state / "executions").read_text().splitlines()
        return Counter(line.split()[1] for line in lines if trial_id in line)

    def left_behind(self) -> dict[str, Any]:
        """Boxes, and what the store still holds for running work; empty when all is well."""
        left: dict[str, Any] = self.platform.left_in_the_store()
        boxes = sorted(os.listdir(self._state / "boxes"))
        return {**left, "boxes": boxes} if boxes else left

    def await_nothing_left(self) -> None:
        """The last transaction of a job is seen before its neighbours' connections are done."""
        with suppress(AssertionError):
            wait_until(lambda: not self.left_behind(), "nothing is left behind", 10)
        assert self.left_behind() == {}

    def records(self) -> dict[str, list[dict[str, Any]]]:
        """Everything in the store that a trial's activities write."""
        return {name: self.platform.rows(query) for name, query in _RECORDS.items()}


def _files(place: str) -> dict[str, str]:
    if place not in STEPPED:
        return task_files(place, toml=SEPARATE_TOML if place in SEPARATE else TASK_TOML)
    steps = {f"{place}/steps/{step}/instruction.md": f"Step {step}.\n" for step in ("one", "two")}
    setup = {f"{place}/steps/two/workdir/setup.sh": "make /app/ready\n"}
    return {**task_files(place, toml=STEPS_TOML), **steps, **setup}


def _body(tasks: list[str]) -> dict[str, Any]:
    return {
        "datasets": [{"name": DATASET, "task_names": tasks}],
        "agents": [{"name": "oracle"}],
        "n_attempts": N_ATTEMPTS,
        "n_concurrent_trials": N_ATTEMPTS * len(tasks),
    }


def _commands(place: str) -> tuple[str, ...]:
    """What is executed once in a trial of the place."""
    if place in STEPPED:
        return ("agent-1", "verifier-1", "setup-2", "agent-2", "verifier-2")
    return ("agent", "verifier", *(["collect-0"] if place in SEPARATE else []))


@contextmanager
def chaos_ground() -> Iterator[Ground]:
    """A stack of its own with the fast provider, and room for any number of boxes."""
    environment = {
        "EVOLVE_PROVIDER_PLUGINS": "tests.providers.fast:make_provider",
        "EVOLVE_SANDBOX_PROVIDER": "local",
        "EVOLVE_HOST_CPUS": "1000",
        "EVOLVE_HOST_MEMORY_MB": "1000000",
        **OWN_SOURCE,
    }
    with temporary_stack(environment=environment) as stack:
        stack.up()
        platform = RunningPlatform(stack)
        try:
            yield Ground(stack, platform)
        finally:
            platform.close()
