"""What this host's providers have and nobody needs: boxes, litter, and room of trials that are over."""

from __future__ import annotations

from activities.ending import end_box
from activities.sandboxes.base import BoxListing, SandboxProvider
from activities.trial_context import Hands
from domain.errors import InfrastructureFailure
from domain.reaping import FoundBox, LeaseState, Leftover, LeftoverKind, why_reap_box
from store.database import now
from store.hosts import mark_gone
from store.incidents import resolve_vanished
from store.leftovers import holding_lease, lease_states, over_leases


class PartlyDone(Exception):
    """`found` was reaped; `problems` says what could not be."""

    def __init__(self, found: list[Leftover], problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.found = found


async def reap_boxes(hands: Hands, provider: SandboxProvider, *, is_dry: bool) -> list[Leftover]:
    """Boxes that no live trial leases, and leases without a box; the leases' own word is the last.

    Raises `PartlyDone` when a box could not be ended, after all others.
    """
    reaped: list[Leftover] = []
    problems: list[str] = []
    looked_at = now()
    boxes = await provider.list(hands.installation_id)
    listed = {box.tag.name for box in boxes}
    leases = await lease_states(hands.db, list(listed))
    for box in boxes:
        why = _why(box, leases.get(box.tag.name))
        try:
            if why is not None and (is_dry or await _end(hands, provider, box)):
                reaped.append(_leftover(hands, LeftoverKind.BOX, box.tag.name, why))
        except InfrastructureFailure as failure:
            problems.append(f"{box.tag.name}: {failure.message}")
    if not is_dry:
        # Somebody else ended those: an operator at the provider, or their lifetime.
        await resolve_vanished(hands.db, hands.settings.host_id, [provider.name], listed, looked_at)
    reaped += await _give_back_room(hands, provider, listed, is_dry=is_dry)
    if problems:
        raise PartlyDone(reaped, problems)
    return reaped


def _why(box: BoxListing, lease: LeaseState | None) -> str | None:
    return why_reap_box(FoundBox(box.tag.name, box.tag.job_id, box.made_at), lease, now())


async def _end(hands: Hands, provider: SandboxProvider, box: BoxListing) -> bool:
    """Whether it is ended by this. Its name cannot be leased again before it is gone.

    One whose delete is refused stays, an incident, and is tried again the next time.
    """
    name = box.tag.name
    async with holding_lease(hands.db, name) as lease:
        if _why(box, lease) is None:
            return False
        is_ended = await end_box(hands.db, provider, box.box_id)
    await mark_gone(hands.db, name)
    return is_ended


async def _give_back_room(
    hands: Hands, provider: SandboxProvider, listed: set[str], *, is_dry: bool
) -> list[Leftover]:
    """Of boxes that are gone, or were never made."""
    reaped: list[Leftover] = []
    for lease in await over_leases(hands.db, hands.settings.host_id):
        if lease["name"] in listed or lease["provider"] != provider.name:
            continue
        if not is_dry:
            await mark_gone(hands.db, lease["name"])
        why = "its trial is over and there is no box"
        reaped.append(_leftover(hands, LeftoverKind.ROOM, lease["name"], why))
    return reaped


async def reap_litter(hands: Hands, provider: SandboxProvider, *, is_dry: bool) -> list[Leftover]:
    """Pods, networks and builds of dead processes."""
    why = "no box and no process needs it"
    names = await provider.clear_litter(is_dry=is_dry)
    return [_leftover(hands, LeftoverKind.LITTER, f"{provider.name} {name}", why) for name in names]


def _leftover(hands: Hands, kind: LeftoverKind, subject: str, why: str) -> Leftover:
    return Leftover(kind=kind, subject=subject, why=why, host_id=hands.settings.host_id)
