"""What a worker that was away may still write: nothing that its successor has decided."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import pytest_asyncio

from domain.vocabulary import AttemptPhase, TrialStatus
from store import hosts, record
from store.database import Database
from store.fences import Fence, Fenced
from store.hosts import Room
from store.record import PhaseChange
from store.settle import SettleEnd, settle
from store.streams import LostOutput, append_chunk, confirm_streams, high_water, keep_files, read_stream
from store.trials import TrialFile
from tests.finished_jobs import accept, publish, settlement, trial_ids

STREAM = "agent/stdout"


@dataclass(frozen=True)
class RunningTrial:
    """A trial whose agent runs; its fences by phase and try."""

    db: Database
    job_id: str
    trial_id: str

    def fence(self, phase: AttemptPhase, try_number: int = 1) -> Fence:
        return Fence(self.job_id, self.trial_id, 1, phase, try_number)


@pytest_asyncio.fixture
async def trial(db: Database) -> RunningTrial:
    await publish(db, "alpha")
    job_id = await accept(db)
    running = RunningTrial(db, job_id, (await trial_ids(db, job_id))[0])
    change = PhaseChange(status=TrialStatus.RUNNING)
    await record.enter_phase(db, running.fence(AttemptPhase.AGENT), change)
    return running


async def test_output_that_the_database_lost_is_read_again(trial: RunningTrial) -> None:
    fence = trial.fence(AttemptPhase.AGENT)
    await append_chunk(trial.db, fence, STREAM, 0, b"one ")
    await append_chunk(trial.db, fence, STREAM, 4, b"two ")
    pool = await trial.db.pool()
    await pool.execute("DELETE FROM stream_chunks WHERE offset_bytes = 4")  # as a killed Postgres may
    with pytest.raises(LostOutput, match="ends at 4, not at 8"):
        await append_chunk(trial.db, fence, STREAM, 8, b"three")
    with pytest.raises(LostOutput):
        await confirm_streams(trial.db, fence, {STREAM: 8})
    assert await high_water(trial.db, trial.trial_id, 1, STREAM) == 4
    await append_chunk(trial.db, fence, STREAM, 4, b"two three")
    await confirm_streams(trial.db, fence, {STREAM: 13})
    assert await read_stream(trial.db, trial.trial_id, 1, STREAM) == b"one two three"


async def test_a_follower_that_was_overtaken_stores_and_confirms_nothing(trial: RunningTrial) -> None:
    await append_chunk(trial.db, trial.fence(AttemptPhase.AGENT), STREAM, 0, b"one ")
    await record.enter_phase(trial.db, trial.fence(AttemptPhase.AGENT, 2))
    with pytest.raises(Fenced):
        await append_chunk(trial.db, trial.fence(AttemptPhase.AGENT), STREAM, 4, b"two ")
    with pytest.raises(Fenced):
        await confirm_streams(trial.db, trial.fence(AttemptPhase.AGENT), {})
    assert await read_stream(trial.db, trial.trial_id, 1, STREAM) == b"one "


async def test_a_later_step_outranks_all_of_an_earlier_one(trial: RunningTrial) -> None:
    """In the order of a multi-step attempt's life, each of many tries."""
    life = [
        trial.fence(AttemptPhase.INSTALL, 9),
        *(
            replace(trial.fence(phase, 9), step=step)
            for step in (0, 1, 999)
            for phase in (AttemptPhase.INSTALL, AttemptPhase.AGENT, AttemptPhase.VERIFY)
        ),
        trial.fence(AttemptPhase.PERSIST, 9),
        replace(trial.fence(AttemptPhase.PERSIST, 1), is_last_resort=True),
        replace(trial.fence(AttemptPhase.PREPARE, 1), turn=1),
    ]
    ranks = [fence.rank for fence in life]
    assert ranks == sorted(set(ranks))
    await record.enter_phase(trial.db, replace(life[5], try_number=1))
    with pytest.raises(Fenced):
        await record.enter_phase(trial.db, life[3])


async def test_files_are_kept_by_the_last_try_alone(trial: RunningTrial) -> None:
    await record.enter_phase(trial.db, trial.fence(AttemptPhase.PERSIST, 2))
    file = TrialFile(
        trial_id=trial.trial_id,
        attempt_number=1,
        path="a",
        size_bytes=1,
        sha256="0",
        blob_key="b",
        mode=0o644,
    )
    with pytest.raises(Fenced):
        await keep_files(trial.db, trial.fence(AttemptPhase.PERSIST, 1), [file])


async def test_the_last_resort_settles_after_any_number_of_tries(trial: RunningTrial) -> None:
    await record.enter_phase(trial.db, trial.fence(AttemptPhase.PERSIST, 3))
    last = replace(trial.fence(AttemptPhase.PERSIST), is_last_resort=True)
    assert await settle(trial.db, last, settlement(1.0)) == SettleEnd(TrialStatus.SCORED, 1.0)
    with pytest.raises(Fenced):
        await settle(trial.db, trial.fence(AttemptPhase.PERSIST, 4), settlement(0.0))


async def test_a_box_that_was_given_back_is_not_live_again(trial: RunningTrial) -> None:
    host = hosts.Host(
        id="h", providers={"local": {"ok": True}}, default_provider="local", default_reason="", queue="q",
        follow_queue="f", cpus=1, memory_mb=1024, code_version="1", lease_expires_at=record.now(),
    )  # fmt: skip
    await hosts.renew_host(trial.db, host)
    room = Room("box", "local", trial.trial_id, 1, cpus=1, memory_mb=1024)
    async with trial.db.transaction() as connection:
        assert (await hosts.reserve_room(connection, room, 1.0)).host_id == "h"
    assert await hosts.mark_live(trial.db, "box", "id-1")
    await hosts.mark_ending(trial.db, "box")
    assert not await hosts.mark_live(trial.db, "box", "id-2")
    async with trial.db.transaction() as connection:
        other = await hosts.reserve_room(connection, replace(room, name="other"), 1.0)
    assert other.waiting_for, "the room is taken until the box is gone"
    await hosts.mark_gone(trial.db, "box")
    assert not await hosts.mark_live(trial.db, "box", "id-2")
