"""What this host's disks keep for later and may lose: images and harness bundles beyond their budgets."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from activities.sandboxes.base import ImageListing, SandboxProvider
from activities.trial_context import Hands
from domain.reaping import Leftover, LeftoverKind, StoredThing, over_budget
from store.database import now
from store.leftovers import image_uses, images_in_use, oldest_live_attempt

GB = 1024**3


async def reap_images(hands: Hands, provider: SandboxProvider, *, is_dry: bool) -> list[Leftover]:
    """Each provider has a budget of its own. An image that is wanted again is built again."""
    reaped: list[Leftover] = []
    listed = {image.name: image for image in await provider.images()}
    if sum(image.size_bytes for image in listed.values()) > _bytes(hands.settings.image_budget_gb):
        for thing in await _images_to_go(hands, provider, listed):
            if is_dry or await provider.remove_image(thing.name):
                reaped.append(_leftover(hands, LeftoverKind.IMAGE, provider.name, thing))
    return reaped


async def _images_to_go(
    hands: Hands, provider: SandboxProvider, listed: dict[str, ImageListing]
) -> list[StoredThing]:
    used_by_trials = await images_in_use(hands.db, provider.name)
    in_use = {name for name, image in listed.items() if image.id in used_by_trials}
    uses = await image_uses(hands.db, provider.name)
    things = [_stored(image, uses.get(image.id)) for image in listed.values()]
    return over_budget(things, _bytes(hands.settings.image_budget_gb), in_use, now())


def _stored(image: ImageListing, use: Any) -> StoredThing:
    used_at = image.made_at if use is None or use["used_at"] is None else max(use["used_at"], image.made_at)
    return StoredThing(image.name, image.size_bytes, used_at, use is not None and use["is_wanted"])


async def reap_bundles(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    """A bundle that was opened since the oldest live trial began may be mounted in its box."""
    listed = await hands.bundles.listing()
    live_since = await oldest_live_attempt(hands.db)
    in_use = {thing.name for thing in listed if _may_be_mounted(thing, live_since)}
    reaped: list[Leftover] = []
    for thing in over_budget(listed, _bytes(hands.settings.bundle_budget_gb), in_use, now()):
        if not is_dry:
            await hands.bundles.remove(thing.name)
        reaped.append(_leftover(hands, LeftoverKind.BUNDLE, "harness", thing))
    return reaped


def _may_be_mounted(thing: StoredThing, live_since: datetime | None) -> bool:
    return live_since is not None and thing.used_at >= live_since


def _bytes(budget_gb: float) -> int:
    return round(budget_gb * GB)


def _leftover(hands: Hands, kind: LeftoverKind, of: str, thing: StoredThing) -> Leftover:
    need = "" if thing.is_wanted else ", no dataset needs it"
    return Leftover(
        kind=kind,
        subject=f"{of} {thing.name}",
        why=f"over the budget, last used {thing.used_at:%Y-%m-%d %H:%M}{need}",
        host_id=hands.settings.host_id,
        size_bytes=thing.size_bytes,
    )
