"""Timeouts, heartbeats and retries of every activity, in one table; and the one way to call them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from pydantic import BaseModel
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.workflow import ActivityCancellationType

with workflow.unsafe.imports_passed_through():
    from activities.signatures import Signature

Input = TypeVar("Input", bound=BaseModel)
Result = TypeVar("Result", bound=BaseModel)

# Being away is not being dead: an activity is tried until it says itself that trying is useless.
UNTIL_IT_SAYS_NO = RetryPolicy(
    initial_interval=timedelta(milliseconds=200),
    backoff_coefficient=2.0,
    maximum_interval=timedelta(seconds=10),
)
HEARTBEAT = timedelta(seconds=15)


@dataclass(frozen=True)
class Limits:
    """`start_to_close` bounds one try. A followed process has its own deadline in its box.

    `queued` bounds the wait for a worker, where there is no use in waiting for one that is away.
    """

    start_to_close: timedelta
    heartbeat: timedelta | None = None
    queued: timedelta | None = None


RECORD = Limits(timedelta(seconds=30))
ACCEPT = Limits(timedelta(seconds=120), HEARTBEAT)
OPEN_BOX = Limits(timedelta(hours=4), HEARTBEAT)
FOLLOW = Limits(timedelta(days=25), HEARTBEAT)
# By so much a follower may outlast what it follows: the end's clearing up, a wait for a verifier's room.
FOLLOW_MARGIN = timedelta(hours=1)
CLOSE = Limits(timedelta(minutes=30), HEARTBEAT)
IMPORT = Limits(timedelta(hours=2), HEARTBEAT)
BUILD = Limits(timedelta(hours=4), HEARTBEAT)
BUILD_ON_HOST = Limits(timedelta(hours=4), HEARTBEAT, queued=timedelta(minutes=2))
BUILD_ON_HOST_AGAIN = Limits(timedelta(hours=4), HEARTBEAT, queued=timedelta(minutes=10))
ARCHIVE = Limits(timedelta(hours=2), HEARTBEAT)
REAP = Limits(timedelta(minutes=30), HEARTBEAT, queued=timedelta(minutes=2))


def following(timeout_sec: float) -> Limits:
    """Of one try to follow a process: its box keeps the deadline, this is the workflow's own, behind it.

    A try that a hung worker holds for longer is ended, and another takes the process up where it is.
    """
    return Limits(timedelta(seconds=timeout_sec) + FOLLOW_MARGIN, HEARTBEAT)


RECONCILE_AFTER = timedelta(seconds=60)


@dataclass(frozen=True)
class Pace:
    """Waits that grow up to a ceiling, each spread by half to either side: trials wait in crowds."""

    first_sec: float
    most_sec: float

    def nth(self, n: int) -> timedelta:
        """The wait after `n` others."""
        grown = min(self.first_sec * 1.5 ** min(n, 50), self.most_sec)
        return timedelta(seconds=grown * (0.5 + workflow.random().random()))


# For room on our own hosts: asking again is cheap, and room that was freed should not stand empty.
WAIT_FOR_ROOM = Pace(2, 10)
WAIT_FOR_CAPACITY = Pace(5, 60)
CAPACITY_BUDGET = timedelta(hours=1)  # of all waits of a trial for its provider
WAITS_PER_RUN = 500  # for room, after which a trial continues as new: a wait writes about seven events
REPORTS_PER_RUN = 500  # of a provider's breaker: a report is a signal, and a run takes 10,000 of them
TRIALS_PER_RUN = 300  # settles after which the job continues as new: measured at about 360 kB of history


async def call(
    signature: Signature[Input, Result], argument: Input, limits: Limits, *, queue: str | None = None
) -> Result:
    """Run an activity on a queue (default: the workflow's own) and wait for what it returns."""
    return await workflow.execute_activity(
        signature.name,
        argument,
        result_type=signature.result_type,
        task_queue=queue,
        schedule_to_start_timeout=limits.queued,
        start_to_close_timeout=limits.start_to_close,
        heartbeat_timeout=limits.heartbeat,
        retry_policy=UNTIL_IT_SAYS_NO,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )


async def call_here(signature: Signature[Input, Result], argument: Input, limits: Limits) -> Result:
    """Run a short activity in this worker, without a queue between: a third of the price."""
    return await workflow.execute_local_activity(
        signature.name,
        argument,
        result_type=signature.result_type,
        start_to_close_timeout=limits.start_to_close,
        retry_policy=UNTIL_IT_SAYS_NO,
        cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
    )
