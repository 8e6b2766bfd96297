"""What a storm asks of the API: a list of random calls, the same for the same seed.

A call names jobs and trials by ordinals (the third job that was asked for, its fifth trial), so that it can
be drawn before anything has been answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

Verb = Literal[
    "create",
    "cancel",
    "stop",
    "stop_dataset",
    "resume",
    "retry",
    "retry_trial",
    "regrade",
    "delete",
    "pause",
    "unpause",
    "read",
    "list_trials",
    "download",
]
# How often each is drawn; `stop_dataset` takes the place of some `stop`s. The first five calls are creates,
# so that there is something to work on.
WEIGHTS: dict[Verb, int] = {
    "create": 20,
    "cancel": 9,
    "stop": 14,
    "resume": 8,
    "retry": 8,
    "retry_trial": 4,
    "regrade": 4,
    "delete": 8,
    "pause": 5,
    "unpause": 6,
    "read": 5,
    "list_trials": 3,
    "download": 3,
}
MAKES_A_JOB: frozenset[Verb] = frozenset({"create", "resume", "retry", "retry_trial", "regrade"})
# What a repeat with the same Idempotency-Key answers the same to (contract 2.7, 2.8).
HAS_A_KEY = MAKES_A_JOB - {"regrade"}
# Refused while the job runs, for which there is a place among the tests too.
_OF_ENDED_JOBS: frozenset[Verb] = frozenset({"resume", "retry", "regrade", "delete", "download"})
N_FIRST_CREATES = 5
STOPS_OF_DATASETS = 0.5
JOBS_OF_TWO_DATASETS = 0.4

DATASET = "storm"
# The second dataset of some jobs: one of the two is stopped.
SIDE_DATASET = "squall"
SIDE_TASKS = ("good", "brief", "long")
FAST_TASKS = ("good", "half", "crash", "brief", "long", "separate", "stepped")
REAL_TASK = "real"
TALKER = "talker"
MODEL = "claude-haiku-4-5"
ARMS: tuple[dict[str, Any], ...] = (
    {"name": "oracle"},
    {"name": "nop"},
    {"name": TALKER, "model_name": MODEL},
)


@dataclass(frozen=True)
class Call:
    """One call. `pause_sec` is how long after the one before it is made.

    `job` is the ordinal of the job that it is about, `made` that of the job which it asks for, `picks` are
    places of trials in the job, as fractions of its length. `is_doubled`: sent twice at once, under one key.
    `dataset` is whose live trials `stop_dataset` ends.
    """

    number: int
    verb: Verb
    pause_sec: float
    job: int | None = None
    made: int | None = None
    picks: tuple[float, ...] = ()
    body: dict[str, Any] = field(default_factory=dict[str, Any])
    is_doubled: bool = False
    dataset: str | None = None


class CallPlan:
    """Draws calls one after another; `rate` is calls a second. `has_docker`: real boxes may be containers."""

    def __init__(self, seed: int, rate: float, *, has_docker: bool = False) -> None:
        self._has_docker = has_docker
        self._random = Random(f"calls/{seed}")
        # Of its own, so that the seeds that were kept before there were datasets to stop draw what they drew.
        self._of_datasets = Random(f"datasets/{seed}")
        self._rate = rate
        self._n_calls = 0
        self._n_jobs = 0

    def draw(self) -> Call:
        """The next one."""
        self._n_calls += 1
        verb = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if self._n_calls <= N_FIRST_CREATES:
            verb = "create"
        job = None if verb == "create" else self._pick_job(is_late=verb not in _OF_ENDED_JOBS)
        made = None
        dataset = None
        if verb == "stop" and self._of_datasets.random() < STOPS_OF_DATASETS:
            verb, dataset = "stop_dataset", self._of_datasets.choice((DATASET, SIDE_DATASET))
        if verb in MAKES_A_JOB:
            made, self._n_jobs = self._n_jobs, self._n_jobs + 1
        return Call(
            number=self._n_calls,
            verb=verb,
            pause_sec=self._random.expovariate(self._rate),
            job=job,
            made=made,
            picks=tuple(self._random.random() for _ in range(self._random.randint(1, 4))),
            body=self._body(verb),
            is_doubled=verb in HAS_A_KEY and self._random.random() < 0.15,
            dataset=dataset,
        )

    def _pick_job(self, *, is_late: bool) -> int:
        """Mostly a late one, which is likely to be under way, or an early one, which is likely to be over."""
        return int(self._random.triangular(0, self._n_jobs, self._n_jobs if is_late else 0))

    def _body(self, verb: Verb) -> dict[str, Any]:
        if verb == "create":
            return self._job()
        if verb == "resume" and self._random.random() < 0.3:
            return {"filter_error_types": [self._random.choice(("InfrastructureError", "CancelledError"))]}
        if verb == "retry":
            return self._random.choice(({}, {"failed_only": True}, {"trial_ids": []}))
        return {}

    def _job(self) -> dict[str, Any]:
        draw = self._random
        tasks = draw.sample(FAST_TASKS, draw.choice((1, 1, 2)))
        if draw.random() < 0.1:
            tasks = [REAL_TASK]
        where: dict[str, Any] = {}
        if self._has_docker and tasks == [REAL_TASK] and draw.random() < 0.7:
            where = {"sandbox_provider": "docker"}
        return {
            **where,
            "datasets": [{"name": DATASET, "task_names": tasks}, *self._second_dataset()],
            "agents": draw.sample(ARMS, draw.choice((1, 1, 1, 1, 2))),
            "n_attempts": draw.choice((1, 1, 2, 2)),
            "n_concurrent_trials": draw.choice((1, 4, 4, 16)),
            "max_trial_spend_usd": 1.0,
            "retry": self._retry(),
        }

    def _second_dataset(self) -> list[dict[str, Any]]:
        draw = self._of_datasets
        if draw.random() >= JOBS_OF_TWO_DATASETS:
            return []
        return [{"name": SIDE_DATASET, "task_names": draw.sample(SIDE_TASKS, draw.choice((1, 2)))}]

    def _retry(self) -> dict[str, Any]:
        draw = self._random
        policy: dict[str, Any] = {
            "max_retries": draw.choice((0, 1, 2, 5)),
            "min_wait_sec": draw.choice((0.0, 0.2, 1.0)),
            "wait_multiplier": draw.choice((1.0, 2.0)),
            "max_wait_sec": 3.0,
        }
        if draw.random() < 0.2:
            policy["exclude_exceptions"] = None
        if draw.random() < 0.1:
            policy["include_exceptions"] = ["InfrastructureError"]
        return policy
