"""A box's end, also where its provider does not allow it."""

from __future__ import annotations

import structlog

from activities.sandboxes.base import SandboxProvider
from domain.errors import DeleteRefused, InfrastructureFailure
from store.database import Database
from store.incidents import BOX_KINDS, IncidentKind, note_incident, resolve_incident

log = structlog.get_logger()


async def end_box(db: Database, provider: SandboxProvider, box_id: str) -> bool:
    """Destroy it. Where that is forbidden stop it and open an incident; False: it is there still.

    Raises what else `destroy` raises.
    """
    try:
        await provider.destroy(box_id)
    except DeleteRefused as refusal:
        what = await _stop(provider, box_id)
        message = f"{provider.name}: {refusal.message}; {what}"
        log.error("a box cannot be destroyed", box=box_id, message=message)
        await note_incident(db, IncidentKind.DELETE_REFUSED, box_id, message)
        return False
    # An earlier try may have been refused.
    await resolve_incident(db, box_id, *BOX_KINDS)
    return True


async def _stop(provider: SandboxProvider, box_id: str) -> str:
    try:
        await provider.stop(box_id)
    except InfrastructureFailure as error:
        return f"it could not be stopped either: {error.message}"
    return "it is stopped"
