"""A trial's verifier inputs: a member of its record, beyond the contract's."""

from __future__ import annotations

from domain.verifier_inputs import VerifierInputs
from store.database import Database

MEMBER = "x_verifier_inputs"


async def verifier_inputs(db: Database, trial_id: str, attempt_number: int) -> VerifierInputs | None:
    """What was recorded of an attempt; None when its verifier never got that far, or is not separate."""
    pool = await db.pool()
    found = await pool.fetchval("SELECT result -> $2 FROM trials WHERE id = $1", trial_id, MEMBER)
    inputs = None if found is None else VerifierInputs.model_validate(found)
    return inputs if inputs is not None and inputs.attempt_number == attempt_number else None
