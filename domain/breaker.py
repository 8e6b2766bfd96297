"""When boxes of a provider keep failing to be made, for whatever trial: stop asking it, and probe.

One such breaker a provider, kept by its entity workflow. It hears of failures only; how many creates went
well meanwhile is looked up when the failures look bad, so that a healthy trial pays nothing.

closed ──(failures of several trials, next to no success)──▶ open ──(a pause)──▶ half open: one trial is let
through ──▶ closed when its box is made, open again (a longer pause) when not. An operator may hold it open.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

WINDOW = timedelta(minutes=10)
TRIALS_TO_OPEN = 3
# Trials of one task alone may fail by what the task asks for; so many of them are the provider's doing.
TRIALS_OF_ONE_TASK_TO_OPEN = 10
GOOD_PER_FAILURE = 0.25
FIRST_PAUSE = timedelta(seconds=30)
LONGEST_PAUSE = timedelta(minutes=5)
PROBE_TIME = timedelta(minutes=10)
PATIENCE = timedelta(hours=1)
"""How long trials wait for an open breaker. After that they fail at once, so that every job ends, while
probing goes on; one that an operator holds open is waited for without limit."""
MOST_FAILURES_KEPT = 100


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CreateFailure(BaseModel):
    """A box that could not be made, and for whom."""

    model_config = ConfigDict(frozen=True)

    trial_id: str
    task: str
    at: datetime
    message: str


class Breaker(BaseModel):
    """`since` is when the state began, `outage_since` when the breaker last left `closed`."""

    model_config = ConfigDict(frozen=True)

    state: BreakerState = BreakerState.CLOSED
    since: datetime | None = None
    outage_since: datetime | None = None
    n_openings: int = 0
    is_held: bool = False
    reason: str | None = None
    failures: tuple[CreateFailure, ...] = ()

    def failed(self, failure: CreateFailure) -> Breaker:
        """A create failed: remembered while closed, the answer to a probe while half open."""
        if self.state is BreakerState.HALF_OPEN:
            return self._opened(failure.at, failure.message)
        if self.state is BreakerState.OPEN:
            return self
        recent = [f for f in (*self.failures, failure) if f.at > failure.at - WINDOW]
        return self.model_copy(update={"failures": tuple(recent[-MOST_FAILURES_KEPT:])})

    @property
    def is_suspect(self) -> bool:
        """Whether enough trials failed to ask how many creates went well in `WINDOW`."""
        n_trials = len({failure.trial_id for failure in self.failures})
        is_one_task = len({failure.task for failure in self.failures}) == 1
        needed = TRIALS_OF_ONE_TASK_TO_OPEN if is_one_task else TRIALS_TO_OPEN
        return self.state is BreakerState.CLOSED and n_trials >= needed

    def judged(self, n_good: int, at: datetime) -> Breaker:
        """A suspect breaker opens unless creates mostly go well."""
        if not self.is_suspect or n_good > len(self.failures) * GOOD_PER_FAILURE:
            return self
        return self._opened(at, self.failures[-1].message)

    def succeeded(self, at: datetime) -> Breaker:
        """A probe's box was made."""
        return Breaker(since=at) if self.state is BreakerState.HALF_OPEN else self

    def held_open(self, at: datetime) -> Breaker:
        """An operator pauses dispatch until they end it."""
        opened = self._opened(at, "an operator has paused this provider")
        return opened.model_copy(update={"is_held": True})

    def closed(self, at: datetime) -> Breaker:
        """An operator says that the provider is well; failures from now on count anew."""
        return Breaker(since=at)

    def due_at(self) -> datetime | None:
        """When `due` is to be asked if nothing happens before; None for never."""
        if self.state is BreakerState.CLOSED:
            return self.failures[-1].at + WINDOW if self.failures else None
        if self.is_held or self.since is None:
            return None
        return self.since + (self._pause() if self.state is BreakerState.OPEN else PROBE_TIME)

    def due(self, at: datetime) -> Breaker:
        """Time has passed: old failures are forgotten, a pause ends in a probe, a lost probe in another."""
        if self.state is BreakerState.CLOSED:
            return self.model_copy(update={"failures": ()})
        return self.model_copy(update={"state": BreakerState.HALF_OPEN, "since": at})

    def _pause(self) -> timedelta:
        return min(FIRST_PAUSE * 2 ** min(self.n_openings - 1, 10), LONGEST_PAUSE)

    def _opened(self, at: datetime, reason: str) -> Breaker:
        return Breaker(
            state=BreakerState.OPEN,
            since=at,
            outage_since=self.outage_since or at,
            n_openings=self.n_openings + 1,
            reason=reason,
        )
