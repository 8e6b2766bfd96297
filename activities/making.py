"""Making the box of an attempt, whoever still wants it when it is there."""

from __future__ import annotations

import asyncio

import structlog

from activities.ending import end_box
from activities.sandboxes.base import Box, BoxSpec, SandboxProvider
from domain.errors import EvolveError
from store.database import Database
from store.hosts import mark_live

log = structlog.get_logger()

# A task that nobody refers to may be collected while it runs.
_making: set[asyncio.Task[Box]] = set()


class TrialOver(EvolveError):
    """The trial settled while an activity of it was on its way: nothing more is to be done."""

    code = "trial_over"


async def make_leased_box(db: Database, provider: SandboxProvider, spec: BoxSpec) -> Box:
    """Create the box of a lease, and note its id there.

    A create is never broken off: where its activity is cancelled meanwhile (the trial was stopped, or a
    worker that was frozen wakes up and hears that its successor went on), the provider may be past the
    point of no return. It runs on and looks at its end whether the lease is still there.

    Raises `TrialOver` when the lease has ended, and the box with it; what else `create` raises.
    """
    making = asyncio.create_task(_make(db, provider, spec))
    _making.add(making)
    making.add_done_callback(_done)
    return await asyncio.shield(making)


async def _make(db: Database, provider: SandboxProvider, spec: BoxSpec) -> Box:
    box = await provider.create(spec)
    if not await mark_live(db, spec.tag.name, box.box_id):
        # Its attempt was finished, by this worker or a successor, and looked for its box before this.
        await end_box(db, provider, box.box_id)
        raise TrialOver(f"trial {spec.tag.trial_id} has given its box back")
    return box


def _done(making: asyncio.Task[Box]) -> None:
    """Whoever waited has the error; it is told here for the one who no longer does."""
    _making.discard(making)
    if not making.cancelled() and (error := making.exception()) is not None:
        log.info("no box was made", error=str(error))
