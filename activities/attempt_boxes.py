"""The boxes of an attempt at its close: what is kept of them, and their end."""

from __future__ import annotations

from contextlib import suppress

from activities.capture import Capture
from activities.ending import end_box
from activities.sandboxes.base import SandboxProvider
from activities.signatures import CloseInput
from activities.trial_context import Hands, box_tag
from domain.errors import SandboxDeath
from store.hosts import leased_boxes, mark_ending, mark_gone, release_room
from store.incidents import IncidentKind, note_incident


async def keep_verifiers_box(hands: Hands, close: CloseInput, capture: Capture) -> None:
    """Keep what a separate verifier wrote, however it ended."""
    name = box_tag(hands.installation_id, close, "verifier").name
    for lease in await leased_boxes(hands.db, close.trial_id, close.attempt_number):
        if lease["name"] == name and lease["box_id"] is not None:
            with suppress(SandboxDeath):
                box = await hands.provider(close.provider).attach(lease["box_id"])
                await capture.keep_tree(box, "/logs/verifier", "verifier")


async def end_boxes(hands: Hands, close: CloseInput) -> None:
    """Destroy the attempt's boxes, also one whose creation never answered: it is found by its tag."""
    for lease in await leased_boxes(hands.db, close.trial_id, close.attempt_number):
        if not close.provider:
            # Placed, and the worker died before it could say where: nothing was made yet.
            await release_room(hands.db, lease["name"])
            continue
        provider = hands.provider(close.provider)
        await mark_ending(hands.db, lease["name"])
        known = [lease["box_id"]] if lease["box_id"] else await _find(hands, provider, lease["name"])
        for box_id in known:
            await end_box(hands.db, provider, box_id)
        await mark_gone(hands.db, lease["name"])


async def tell_boxes_left(hands: Hands, close: CloseInput) -> None:
    """Those that its close could not end: they are the reaper's, and an operator is told."""
    message = f"{close.provider}: trial {close.trial_id} settled without its end: {close.unclosed}"
    for lease in await leased_boxes(hands.db, close.trial_id, close.attempt_number):
        await note_incident(hands.db, IncidentKind.BOX_LEFT, lease["box_id"] or lease["name"], message)


async def give_up_boxes(hands: Hands, close: CloseInput) -> None:
    """Of a dead host: should it come back, whoever still makes one ends it, and its reaper ends the rest."""
    for lease in await leased_boxes(hands.db, close.trial_id, close.attempt_number):
        await mark_gone(hands.db, lease["name"])


async def _find(hands: Hands, provider: SandboxProvider, name: str) -> list[str]:
    found = await provider.list(hands.installation_id)
    return [listing.box_id for listing in found if listing.tag.name == name]
