"""One storm: a stack, random calls, a nemesis, then calm, and what is wrong after it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.chaos import remains
from tests.chaos.caller import Caller, History
from tests.chaos.calls import DATASET, MODEL, REAL_TASK, SIDE_DATASET, SIDE_TASKS, TALKER, CallPlan
from tests.chaos.checker import CHECKS, Evidence
from tests.chaos.held_trials import SEPARATE_TOML, STEPS_TOML
from tests.chaos.nemesis import Nemesis, Pace, small_disk
from tests.chaos.own_engine import OwnEngine, own_engine
from tests.chaos.refusals import Refusals
from tests.cli.stack_harness import Stack, temporary_stack
from tests.e2e.own_provider import OwnProvider, own_provider
from tests.factories import TASK_TOML, task_files
from tests.running_platform import OWN_SOURCE, RunningPlatform

BALANCE_USD = 1000
TELL_EVERY_SEC = 15.0
NANOS_PER_USD = 1_000_000_000
# A model that takes its time, so that agents are there to be disturbed.
TURN = {"text": "Something.", "delay_sec": 0.4, "usage": {"input_tokens": 900, "output_tokens": 30}}
_WORDS = {
    "good": ("solve\n", ""),
    "half": ("solve\n", "reward 0.5\n"),
    "crash": ("solve\n", "exit 3\n"),
    "brief": ("wait 1\nsolve\n", ""),
    "long": ("wait 4\nsolve\n", "wait 1\nreward 0\nreward-if-solved 1\n"),
}
_REAL_TEST = "mkdir -p /logs/verifier\n[ -e /app/solved ] && echo 1 > /logs/verifier/reward.txt\n"


@dataclass(frozen=True)
class Weather:
    """How much of a storm: calls until both limits are reached, patience for the calm after it.

    It goes on until the nemesis has done all it does `min_rounds` times, and then for `patience_sec` at most
    until the provider has done everything once: on a busy machine that waits for its occasion.
    """

    seed: int
    n_calls: int
    min_sec: float
    rate: float
    pace: Pace = field(default_factory=Pace)
    min_rounds: int = 1
    has_docker: bool = False
    patience_sec: float = 120.0
    calm_sec: float = 200.0


@dataclass
class Report:
    """How a storm went. `wrong` maps a check to what it found; empty where all is well."""

    seed: int
    history: History
    faults: dict[str, int]
    wrong: dict[str, list[str]]
    counts: dict[str, int]
    durations: dict[str, float]
    story: list[str]

    def told(self) -> str:
        """For people: the faults first, each with its number."""
        lines = [f"storm {self.seed}: {self.history.n_calls} calls, {sum(self.faults.values())} faults"]
        lines += [f"  {count:4}  {fault}" for fault, count in sorted(self.faults.items())]
        lines.append("calls, by their answers:")
        lines += [f"  {count:4}  {answer}" for answer, count in sorted(self.history.answers.items())]
        lines.append(f"  {self.history.n_asked_again:4}  times a call was sent again")
        lines.append("at the end: " + ", ".join(f"{count} {what}" for what, count in self.counts.items()))
        lines.append("seconds: " + ", ".join(f"{what} {sec:.0f}" for what, sec in self.durations.items()))
        for check, found in self.wrong.items():
            lines += [f"WRONG {check}: {fault}" for fault in found[:20]]
        return "\n".join(lines)


class Storm:
    """On a stack that is up."""

    def __init__(self, weather: Weather, ground: Ground) -> None:
        self._weather = weather
        self._ground = ground
        self._nemesis = Nemesis(weather.seed, ground.stack, weather.pace, ground.disk, ground.engine)
        self._began = time.monotonic()
        self._durations: dict[str, float] = {}
        self._waits: list[str] = []

    def run(self) -> Report:
        """Through all of it, and the checks."""
        history = asyncio.run(self._rage())
        ground = self._ground
        wrong = self._await_nothing_left("clearing up")
        n_refused = len(ground.refusals.boxes())
        ground.refusals.relent()
        wrong |= self._await_nothing_left("clearing up what was refused")
        evidence = Evidence.gather(
            ground.platform, history, BALANCE_USD * NANOS_PER_USD, len(ground.provider.calls)
        )
        wrong |= {check.__name__: found for check in CHECKS if (found := check(evidence))}
        self._lap("checks")
        return Report(
            seed=self._weather.seed,
            history=history,
            faults=self._nemesis.counted(),
            wrong=wrong,
            counts=_counts(evidence) | {"boxes whose end was refused": n_refused},
            durations=self._durations,
            story=[*self._nemesis.log, *history.log, *self._waits],
        )

    def _lap(self, what: str) -> None:
        now = time.monotonic()
        self._durations[what] = now - self._began
        self._began = now

    async def _rage(self) -> History:
        caller = Caller(self._ground.stack.api_url, self._ground.api_key)
        self._nemesis.start()
        try:
            calls = await self._call(caller)
            await asyncio.to_thread(self._nemesis.stop)
            self._lap("storm")
            await asyncio.to_thread(self._ground.stack.await_healthy)
            self._lap("recovery")
            await asyncio.gather(*calls)
            self._lap("last answers")
            await self._await_ends(caller.history)
            self._lap("last ends")
        finally:
            await caller.close()
        return caller.history

    async def _call(self, caller: Caller) -> list[asyncio.Task[None]]:
        """Calls at random moments for as long as the weather lasts; most are answered meanwhile."""
        weather, plan = (
            self._weather,
            CallPlan(self._weather.seed, self._weather.rate, has_docker=self._ground.engine is not None),
        )
        until = time.monotonic() + weather.min_sec
        calls: list[asyncio.Task[None]] = []
        while not self._nemesis.is_broken and (
            len(calls) < weather.n_calls or time.monotonic() < until or self._is_wanting(until)
        ):
            call = plan.draw()
            await asyncio.sleep(call.pause_sec)
            calls.append(asyncio.create_task(caller.make(call)))
        return calls

    def _is_wanting(self, until: float) -> bool:
        if self._nemesis.n_rounds < self._weather.min_rounds:
            return True
        return not self._nemesis.has_done_all and time.monotonic() < until + self._weather.patience_sec

    async def _await_ends(self, history: History) -> None:
        """Paused jobs go on; every stream tells its job's end, or `checker` says which did not."""
        await asyncio.to_thread(self._ground.unpause_all)
        began = told_at = time.monotonic()
        while time.monotonic() < began + self._weather.calm_sec:
            is_told = all(job.is_stream_over for job in history.jobs.values())
            if is_told and await asyncio.to_thread(self._ground.are_all_over):
                return
            if time.monotonic() > told_at + TELL_EVERY_SEC:
                told_at = time.monotonic()
                self._waits += await asyncio.to_thread(self._ground.waited_for)
            await asyncio.sleep(0.3)

    def _await_nothing_left(self, what: str) -> dict[str, list[str]]:
        deadline = time.monotonic() + self._weather.calm_sec
        while True:
            found = self._ground.remains()
            if not found or time.monotonic() > deadline:
                self._lap(what)
                return found
            time.sleep(0.5)


def _counts(evidence: Evidence) -> dict[str, int]:
    trials = [trial for rows in evidence.trials.values() for trial in rows]
    return {
        "jobs": len(evidence.jobs),
        "jobs deleted": len(evidence.history.jobs) - len(evidence.jobs),
        "trials": len(trials),
        "retries": sum(trial["n_retries"] for trial in trials),
        "events": sum(len(rows) for rows in evidence.events.values()),
        "model calls": len(evidence.calls),
    }


@dataclass
class Ground:
    """The stack with its tasks and its agent, ready for a storm."""

    stack: Stack
    platform: RunningPlatform
    provider: OwnProvider
    disk: Path | None
    engine: OwnEngine | None
    refusals: Refusals

    @property
    def api_key(self) -> str:
        return str(json.loads((self.stack.home / "credentials.json").read_text())["api_key"])

    def prepare(self) -> None:
        """Publish the tasks, register the agent, fill the wallet."""
        platform = self.platform
        platform.publish(DATASET, _dataset())
        platform.publish(SIDE_DATASET, _tasks_of_words(SIDE_TASKS))
        files = {"install_script": ("install.sh", b"#!/bin/sh\n", "text/x-shellscript")}
        platform.ask("PUT", f"/api/agents/{TALKER}", data={"run_command": "talk"}, files=files)
        [owner] = platform.rows("SELECT email FROM users")
        filled = self.stack.run("admin", "credits", "set", owner["email"], str(BALANCE_USD))
        assert filled.returncode == 0, filled.stderr

    def unpause_all(self) -> None:
        for row in self.platform.rows("SELECT id FROM jobs WHERE paused_at IS NOT NULL"):
            self.platform.ask("POST", f"/api/jobs/{row['id']}/unpause", json={})

    def are_all_over(self) -> bool:
        return not self.platform.rows("SELECT id FROM jobs WHERE finished_at IS NULL LIMIT 1")

    def waited_for(self) -> list[str]:
        """Why it is not calm yet: the live trials, and some of what Temporal waits for."""
        live = self.platform.rows(
            "SELECT status, phase, count(*) AS n FROM trials WHERE finished_at IS NULL GROUP BY status, phase"
        )
        at = f"{time.time():.1f} waits for"
        pending = remains.pending_activities(self.stack, at_most=10)
        return [*(f"{at} {dict(row)}" for row in live), *(f"{at} {each}" for each in pending)]

    def remains(self) -> dict[str, list[str]]:
        """What must not be there once every job has ended; empty when nothing is.

        A box that its provider does not let go is there, and nothing of it but its stopped self.
        """
        refused = self.refusals.boxes()
        trial_ids = {row["id"] for row in self.platform.rows("SELECT id FROM trials")}
        found = {
            "the store": [f"{n} {what}" for what, n in self.platform.left_in_the_store().items()],
            "boxes": [box for box in remains.boxes(self.stack) if box not in refused],
            "incidents": self.refusals.faults(),
            "the engine": self.engine.boxes() if self.engine else [],
            "processes": remains.processes(self.stack),
            "mounts": remains.mounts(self.stack, self.disk),
            "cgroups": remains.cgroups(trial_ids, but=refused),
            "workflows": remains.live_workflows(self.stack),
        }
        return {f"left in {where}": left for where, left in found.items() if left}


def _tasks_of_words(names: Iterable[str]) -> dict[str, str]:
    files: dict[str, str] = {}
    for name in names:
        solve, test = _WORDS[name]
        files |= task_files(name, solve=solve, test=test)
    return files


def _dataset() -> dict[str, str]:
    return _tasks_of_words(_WORDS) | {
        **task_files("separate", toml=SEPARATE_TOML),
        **task_files("stepped", toml=STEPS_TOML),
        **{f"stepped/steps/{step}/instruction.md": f"Step {step}.\n" for step in ("one", "two")},
        f"{REAL_TASK}/task.toml": TASK_TOML,
        f"{REAL_TASK}/instruction.md": "Solve it.\n",
        f"{REAL_TASK}/environment/Dockerfile": "FROM evolve-test/debian:bookworm\nWORKDIR /app\n",
        f"{REAL_TASK}/solution/solve.sh": "#!/bin/sh\nsleep 1\ntouch /app/solved\n",
        f"{REAL_TASK}/tests/test.sh": _REAL_TEST,
    }


@contextmanager
def storm_ground(*, has_docker: bool = False) -> Iterator[Ground]:
    """A stack of its own, its blobs on a small disk where we may mount one."""
    with ExitStack() as held:
        scripts = Path(held.enter_context(TemporaryDirectory()))
        # JSON is YAML.
        (scripts / "models.yaml").write_text(json.dumps({"models": {MODEL: {"turns": [TURN]}}}))
        provider = held.enter_context(own_provider(scripts))
        engine = held.enter_context(own_engine()) if has_docker else None
        stack = held.enter_context(temporary_stack(environment=_environment(provider, engine)))
        stack.home.mkdir(mode=0o700)
        disk = held.enter_context(small_disk(stack.home / "blobs"))
        stack.up()
        held.callback(stack.down)
        platform = held.enter_context(closing(RunningPlatform(stack)))
        ground = Ground(stack, platform, provider, disk, engine, Refusals(stack, platform))
        ground.prepare()
        yield ground


def _environment(provider: OwnProvider, engine: OwnEngine | None) -> dict[str, str]:
    return {
        "DOCKER_HOST": engine.host if engine else "unix:///nonexistent",
        "EVOLVE_PROVIDER_PLUGINS": "tests.chaos.chaotic_provider:make_provider",
        "EVOLVE_SANDBOX_PROVIDER": "local",
        "EVOLVE_HOST_CPUS": "1000",
        "EVOLVE_HOST_MEMORY_MB": "1000000",
        "EVOLVE_REAP_EVERY_SEC": "20",
        "EVOLVE_UPSTREAMS": json.dumps({"anthropic": provider.url}),
        "EVOLVE_ANTHROPIC_API_KEY": "sk-of-the-storm-0123456789",
        **OWN_SOURCE,
    }


def rage(weather: Weather, *, is_kept: bool = False) -> Report:
    """A storm from nothing to nothing. Its logs and story are kept when something is wrong, or `is_kept`."""
    began = time.monotonic()
    with storm_ground(has_docker=weather.has_docker) as ground:
        report = Storm(weather, ground).run()
        report.durations = {
            "set-up": time.monotonic() - began - sum(report.durations.values())
        } | report.durations
        if report.wrong or is_kept:
            keep_evidence(ground.stack, report)
    return report


def keep_evidence(stack: Stack, report: Report) -> None:
    """Logs, and what was done in which order, for who looks for the cause."""
    kept = Path("/tmp") / f"evolve-storm-{report.seed}"
    kept.mkdir(exist_ok=True)
    for log in (stack.home / "logs").glob("*.log"):
        (kept / log.name).write_bytes(log.read_bytes())
    (kept / "story.txt").write_text("\n".join([*report.story, report.told()]))


# For `make test`.
SHORT: dict[str, Any] = {"n_calls": 220, "min_sec": 30.0, "rate": 4.0}
