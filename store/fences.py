"""Fences: a write carries who writes it, and the store refuses one whose place has been taken.

A worker that was frozen while another took over its activity may wake at any moment; whatever it
then writes carries the lower try and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from domain.errors import EvolveError
from domain.vocabulary import TRIAL_TERMINAL, AttemptPhase, TrialStatus
from store.database import Database

PHASE_RANK = {
    AttemptPhase.PREPARE: 1,
    # One activity opens the box: tried again, it starts from the build.
    AttemptPhase.BUILD: 2,
    AttemptPhase.BOOT: 2,
    AttemptPhase.INSTALL: 2,
    AttemptPhase.AGENT: 3,
    AttemptPhase.VERIFY: 4,
    AttemptPhase.PERSIST: 9_998,
}
"""Each activity's place in the life of an attempt."""

# A step of a multi-step task goes through these phases, one step after another.
FIRST_STEP_RANK = 10
STEP_RANK = {AttemptPhase.INSTALL: 0, AttemptPhase.AGENT: 1, AttemptPhase.VERIFY: 2}

LAST_RESORT_RANK = 9_999
RANKS_OF_A_TURN = 10_000


_TAKE = """
UPDATE trials SET fence_phase = $3, fence_try = $4
WHERE id = $1 AND (attempt_number, fence_phase, fence_try) <= ($2::int, $3::int, $4::int)
RETURNING *
"""


class Fenced(EvolveError):
    """The writer's place was taken by a later one: its write is refused and it must stop."""

    code = "fenced"


@dataclass(frozen=True)
class Fence:
    """The writer: one try of one phase of one step of one turn of one attempt number."""

    job_id: str
    trial_id: str
    attempt_number: int
    phase: AttemptPhase
    try_number: int
    is_last_resort: bool = False
    """A settle without the box, after the tries that could not end it."""
    turn: int = 0
    """A wait for capacity goes back to an earlier phase; its turn outranks every phase of the one before."""
    step: int | None = None
    """The position of a multi-step task's step; None is what the attempt does as a whole."""

    @property
    def rank(self) -> int:
        return self.turn * RANKS_OF_A_TURN + self._rank_in_turn

    @property
    def _rank_in_turn(self) -> int:
        if self.is_last_resort:
            return LAST_RESORT_RANK
        if self.step is None or self.phase not in STEP_RANK:
            return PHASE_RANK[self.phase]
        return FIRST_STEP_RANK + self.step * len(STEP_RANK) + STEP_RANK[self.phase]


async def lock_trial(connection: Any, fence: Fence) -> Any:
    """The trial's row, locked behind its job's, with the fence taken.

    Returns None when the job or trial was deleted. Raises `Fenced` when a later writer holds the place.
    Jobs are always locked before trials: the one order, so that nothing deadlocks.
    """
    await connection.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", fence.job_id)
    row = await connection.fetchrow(_TAKE, fence.trial_id, fence.attempt_number, fence.rank, fence.try_number)
    if row is None and await connection.fetchval("SELECT id FROM trials WHERE id = $1", fence.trial_id):
        raise Fenced(f"trial {fence.trial_id}: {fence.phase} try {fence.try_number} was taken over")
    return row


async def newest_writer(db: Database, trial_id: str) -> tuple[int, int]:
    """The attempt number and turn that a trial has come to; (1, 0) for one that was deleted."""
    pool = await db.pool()
    row = await pool.fetchrow("SELECT attempt_number, fence_phase FROM trials WHERE id = $1", trial_id)
    return (row["attempt_number"], row["fence_phase"] // RANKS_OF_A_TURN) if row else (1, 0)


def is_settled(row: Any) -> bool:
    """Whether a locked row's status is terminal."""
    return TrialStatus(row["status"]) in TRIAL_TERMINAL
