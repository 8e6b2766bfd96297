"""What is left over: which boxes, images and bundles may go, and why. Facts in, verdicts out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

GRACE = timedelta(minutes=2)
"""Whoever makes or ends something has this long before it counts as left behind."""
BUILD_GRACE = timedelta(hours=1)
"""An agent's build has a box without a lease, for half an hour and its margin at most."""
IN_USE = timedelta(hours=1)
"""What was made or used so recently is not removed, whatever the budget says."""
AGENT_BUILD_JOB = "agent-build"
"""The job id in the tag of such a box."""


class LeftoverKind(StrEnum):
    BOX = "box"
    LITTER = "litter"
    """What belongs to no box: pods, networks and builds of dead processes."""
    ROOM = "room"
    KEY = "key"
    CALL = "call"
    UPLOAD = "upload"
    BLOB = "blob"
    INTENT = "intent"
    STREAM = "stream"
    IMAGE = "image"
    BUNDLE = "bundle"
    IMPORT = "import"
    JOB = "job"
    TRIAL = "trial"
    WORKFLOW = "workflow"


class Leftover(BaseModel):
    """One thing that nobody needs any more, or that went missing; `why` says what is done about it too."""

    model_config = ConfigDict(frozen=True)

    kind: LeftoverKind
    subject: str
    why: str
    host_id: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True)
class FoundBox:
    """A box of this installation, as its provider lists it."""

    name: str
    job_id: str
    made_at: datetime


@dataclass(frozen=True)
class LeaseState:
    """The lease of a box's name. `is_over`: its trial settled, retired that attempt or was deleted, and the
    grace since then is over."""

    state: str
    gone_at: datetime | None
    is_over: bool


def why_reap_box(box: FoundBox, lease: LeaseState | None, at: datetime) -> str | None:
    """Why a box is to be destroyed; None for one that is in use or whose creator may still be at work."""
    if lease is not None and lease.state != "gone":
        return "its trial is over" if lease.is_over else None
    grace = BUILD_GRACE if box.job_id == AGENT_BUILD_JOB else GRACE
    gone_at = lease.gone_at if lease is not None else None
    if at - max(box.made_at, gone_at or box.made_at) < grace:
        return None
    return "nobody leases it" if lease is None else "its lease has ended"


@dataclass(frozen=True)
class StoredThing:
    """An image or a bundle on a host's disk. `used_at` is when it was made where nobody has used it."""

    name: str
    size_bytes: int
    used_at: datetime
    is_wanted: bool = True
    """Whether a dataset version that can be run needs it; what nothing needs goes first."""


def over_budget(
    things: Iterable[StoredThing], budget_bytes: int, in_use: Collection[str], at: datetime
) -> list[StoredThing]:
    """What is to go for the rest to fit: what nothing needs, then what was not used for longest.

    Never what is `in_use` or was used within `IN_USE`, so the rest may be larger than the budget.
    """
    stored = list(things)
    total = sum(thing.size_bytes for thing in stored)
    going: list[StoredThing] = []
    for thing in sorted(stored, key=lambda each: (each.is_wanted, each.used_at)):
        if total <= budget_bytes:
            break
        if thing.name not in in_use and at - thing.used_at >= IN_USE:
            going.append(thing)
            total -= thing.size_bytes
    return going
