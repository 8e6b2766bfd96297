"""The first phase: is the trial still wanted, and where is room for it?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from temporalio import activity

from activities import searching
from activities.failures import current_phase
from activities.signatures import (
    FIND_PLACE,
    GIVE_BACK_ROOM,
    PREPARE_TRIAL,
    AttemptRef,
    CapacityWaited,
    LeftPlace,
    Nothing,
    Placement,
)
from activities.trial_context import Hands, TrialContext, box_tag, fence_of
from domain.events import TrialName, trial_running
from domain.vocabulary import AttemptPhase, TrialStatus
from store.capacity_waits import note_refusal, note_wait, note_wait_over
from store.database import now
from store.events import append_events
from store.fences import is_settled, lock_trial, newest_writer
from store.hosts import Room, leased_host, reserve_room
from store.provider_health import ask_to_dispatch, claim_probe
from store.record import iso, move_status
from store.rooms import release_unmade

# What a task that declares nothing is taken to need.
UNDECLARED_CPUS = 1.0
UNDECLARED_MEMORY_MB = 1024
PAUSED = "the job is paused"


class Prepare:
    """`prepare_trial`: short, and local to the workflow's worker."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    @activity.defn(name=PREPARE_TRIAL.name)
    async def prepare_trial(self, attempt: AttemptRef) -> Placement:
        current_phase.set(AttemptPhase.PREPARE)
        context = await self._hands.load(attempt)
        # Its locks put it in order; the try would fence out the next asking of a trial that waits for room.
        fence = replace(fence_of(attempt, AttemptPhase.PREPARE), try_number=0)
        async with self._hands.db.transaction() as connection:
            row = await lock_trial(connection, fence)
            if row is None or is_settled(row):
                return Placement(is_settled=True)
            if row["status"] == TrialStatus.QUEUED and await _is_paused(connection, attempt.job_id):
                return await _wait(connection, row, PAUSED)
            room = self._room(context)
            dispatch = await ask_to_dispatch(connection, room.provider, attempt.trial_id)
            if dispatch.waiting_for is not None:
                return await _wait(connection, row, dispatch.waiting_for)
            choice = await reserve_room(connection, room, self._hands.settings.cpu_overcommit)
            if choice.waiting_for is not None:
                return await _wait(connection, row, choice.waiting_for)
            if dispatch.is_probe:
                await claim_probe(connection, room.provider, attempt.trial_id)
            await note_wait_over(connection, row)
            if row["status"] == TrialStatus.QUEUED:
                await _start_running(connection, row, choice.host_id)
        return Placement(
            provider=room.provider,
            host_id=choice.host_id,
            queue=choice.queue,
            follow_queue=choice.follow_queue,
            is_probe=dispatch.is_probe,
            search=self._search(context),
        )

    def _search(self, context: TrialContext) -> dict[str, str]:
        if not self._hands.has_search_attributes:
            return {}
        provider = context.plan.sandbox_provider.value
        return searching.of_trial(context.attempt.job_id, context.task_name, context.arm, provider)

    @activity.defn(name=GIVE_BACK_ROOM.name)
    async def give_back_room(self, waited: CapacityWaited) -> Nothing:
        """While the provider has no capacity, others may use our host's room; the trial says it waits."""
        current_phase.set(AttemptPhase.PREPARE)
        fence = replace(fence_of(waited, AttemptPhase.PREPARE), try_number=0)
        async with self._hands.db.transaction() as connection:
            row = await lock_trial(connection, fence)
            if row is not None and not is_settled(row):
                await note_refusal(connection, row, waited.turn, waited.waiting_for)
        await release_unmade(self._hands.db, waited.trial_id, waited.attempt_number)
        return Nothing()

    @activity.defn(name=FIND_PLACE.name)
    async def find_place(self, attempt: AttemptRef) -> LeftPlace:
        number, turn = await newest_writer(self._hands.db, attempt.trial_id)
        newest = attempt.model_copy(update={"attempt_number": number})
        lease = await leased_host(self._hands.db, box_tag(self._hands.installation_id, newest).name)
        left = LeftPlace(attempt_number=number, turn=turn + 1)
        if lease is None:
            return left
        place = {
            "provider": lease["provider"],
            "host_id": lease["id"],
            "queue": lease["queue"],
            "follow_queue": lease["follow_queue"],
        }
        return left.model_copy(update=place)

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


async def _is_paused(connection: Any, job_id: str) -> bool:
    """Whether trials that the job has begun, and that do not run yet, are to wait like those it has not."""
    return bool(await connection.fetchval("SELECT paused_at IS NOT NULL FROM jobs WHERE id = $1", job_id))


async def _wait(connection: Any, row: Any, waiting_for: str) -> Placement:
    await note_wait(connection, row, waiting_for)
    return Placement(waiting_for=waiting_for)


async def _start_running(connection: Any, row: Any, host_id: str) -> None:
    at = now()
    await connection.execute(
        "UPDATE trials SET phase = 'prepare', host_id = $2, started_at = $3, result = result || $4"
        " WHERE id = $1",
        row["id"],
        host_id,
        at,
        {"queue_wait": {"started_at": await _queued_at(connection, row), "finished_at": iso(at)}},
    )
    await move_status(connection, row, TrialStatus.RUNNING)
    name = TrialName(trial_id=row["id"], task_name=row["task_name"], attempt_number=row["attempt_number"])
    await append_events(connection, row["job_id"], [trial_running(name)])


async def _queued_at(connection: Any, row: Any) -> str:
    """When the job was accepted, or the attempt number before was retired."""
    if row["retries"]:
        return str(row["retries"][-1]["settled_at"])
    return iso(await connection.fetchval("SELECT started_at FROM jobs WHERE id = $1", row["job_id"]))
