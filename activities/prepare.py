"""The first phase: is the trial still wanted, and where is room for it?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from temporalio import activity

from activities.signatures import FIND_PLACE, PREPARE_TRIAL, AttemptRef, Placement
from activities.trial_context import Hands, TrialContext, box_tag, fence_of
from domain.events import TrialName, trial_running
from domain.vocabulary import AttemptPhase, TrialStatus
from store.database import now
from store.events import append_events
from store.fences import is_settled, lock_trial
from store.hosts import Room, leased_host, reserve_room
from store.record import iso, move_status

# What a task that declares nothing is taken to need.
UNDECLARED_CPUS = 1.0
UNDECLARED_MEMORY_MB = 1024


class Prepare:
    """`prepare_trial`: short, and local to the workflow's worker."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=PREPARE_TRIAL.name)
    async def prepare_trial(self, attempt: AttemptRef) -> Placement:
        context = await self._hands.load(attempt)
        # Its locks put it in order; the try would fence out the next asking of a trial that waits for room.
        fence = replace(fence_of(attempt, AttemptPhase.PREPARE), try_number=0)
        async with self._hands.db.transaction() as connection:
            row = await lock_trial(connection, fence)
            if row is None or is_settled(row):
                return Placement(is_settled=True)
            room = self._room(context)
            choice = await reserve_room(connection, room, self._hands.settings.cpu_overcommit)
            if choice.waiting_for is not None:
                return Placement(waiting_for=choice.waiting_for)
            if row["status"] == TrialStatus.QUEUED:
                await _start_running(connection, row, choice.host_id)
        return Placement(
            provider=room.provider,
            host_id=choice.host_id,
            queue=choice.queue,
            follow_queue=choice.follow_queue,
        )

    @activity.defn(name=FIND_PLACE.name)
    async def find_place(self, attempt: AttemptRef) -> Placement:
        name = box_tag(self._hands.installation_id, attempt).name
        lease = await leased_host(self._hands.db, name)
        if lease is None:
            return Placement()
        return Placement(
            provider=lease["provider"],
            host_id=lease["id"],
            queue=lease["queue"],
            follow_queue=lease["follow_queue"],
        )

    def _room(self, context: TrialContext) -> Room:
        attempt, task = context.attempt, context.task
        return Room(
            name=box_tag(self._hands.installation_id, attempt).name,
            provider=context.plan.sandbox_provider.value,
            trial_id=attempt.trial_id,
            attempt_number=attempt.attempt_number,
            cpus=task.cpus or UNDECLARED_CPUS,
            memory_mb=task.memory_mb or UNDECLARED_MEMORY_MB,
        )


async def _start_running(connection: Any, row: Any, host_id: str) -> None:
    at = now()
    await connection.execute(
        "UPDATE trials SET phase = 'prepare', host_id = $2, started_at = $3, result = result || $4"
        " WHERE id = $1",
        row["id"],
        host_id,
        at,
        {"queue_wait": {"started_at": await _accepted_at(connection, row["job_id"]), "finished_at": iso(at)}},
    )
    await move_status(connection, row, TrialStatus.RUNNING)
    name = TrialName(trial_id=row["id"], task_name=row["task_name"], attempt_number=row["attempt_number"])
    await append_events(connection, row["job_id"], [trial_running(name)])


async def _accepted_at(connection: Any, job_id: str) -> str:
    return iso(await connection.fetchval("SELECT started_at FROM jobs WHERE id = $1", job_id))
