"""What this host's providers have and nobody needs: boxes, litter, and room of trials that are over."""

from __future__ import annotations

from activities.ending import end_box
from activities.sandboxes.base import BoxListing, SandboxProvider
from activities.trial_context import Hands
from domain.reaping import FoundBox, LeaseState, Leftover, LeftoverKind, why_reap_box
from store.database import now
from store.hosts import mark_gone
from store.incidents import resolve_vanished
from store.leftovers import holding_lease, lease_states, over_leases


async def reap_boxes(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    """Boxes that no live trial leases, and leases without a box; the leases' own word is the last."""
    reaped: list[Leftover] = []
    listed: set[str] = set()
    looked_at = now()
    for provider in hands.providers.values():
        boxes = await provider.list(hands.installation_id)
        listed |= {box.tag.name for box in boxes}
        leases = await lease_states(hands.db, [box.tag.name for box in boxes])
        for box in boxes:
            why = _why(box, leases.get(box.tag.name))
            if why is not None and (is_dry or await _end(hands, provider, box)):
                reaped.append(_leftover(hands, LeftoverKind.BOX, box.tag.name, why))
    if not is_dry:
        # Somebody else ended those: an operator at the provider, or their lifetime.
        await resolve_vanished(hands.db, hands.settings.host_id, list(hands.providers), listed, looked_at)
    return reaped + await _give_back_room(hands, listed, is_dry=is_dry)


def _why(box: BoxListing, lease: LeaseState | None) -> str | None:
    return why_reap_box(FoundBox(box.tag.name, box.tag.job_id, box.made_at), lease, now())


async def _end(hands: Hands, provider: SandboxProvider, box: BoxListing) -> bool:
    """Whether it was still to be ended. Its name cannot be leased again before it is gone."""
    name = box.tag.name
    async with holding_lease(hands.db, name) as lease:
        if _why(box, lease) is None:
            return False
        await end_box(hands.db, provider, box.box_id)
    await mark_gone(hands.db, name)
    return True


async def _give_back_room(hands: Hands, listed: set[str], *, is_dry: bool) -> list[Leftover]:
    """Of boxes that are gone, or were never made."""
    reaped: list[Leftover] = []
    for lease in await over_leases(hands.db, hands.settings.host_id):
        if lease["name"] in listed or lease["provider"] not in hands.providers:
            continue
        if not is_dry:
            await mark_gone(hands.db, lease["name"])
        why = "its trial is over and there is no box"
        reaped.append(_leftover(hands, LeftoverKind.ROOM, lease["name"], why))
    return reaped


async def reap_litter(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    """Pods, networks and builds of dead processes."""
    reaped: list[Leftover] = []
    for provider in hands.providers.values():
        for name in await provider.clear_litter(is_dry=is_dry):
            subject = f"{provider.name} {name}"
            reaped.append(_leftover(hands, LeftoverKind.LITTER, subject, "no box and no process needs it"))
    return reaped


def _leftover(hands: Hands, kind: LeftoverKind, subject: str, why: str) -> Leftover:
    return Leftover(kind=kind, subject=subject, why=why, host_id=hands.settings.host_id)
