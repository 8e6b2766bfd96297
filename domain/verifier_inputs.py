"""What a separate verifier judged: recorded with the trial, so that it can be judged again (contract 6.6)."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from domain.task_config import NetworkPolicy

__all__ = ["VerifierInputs"]


class VerifierInputs(BaseModel):
    """Recorded before the agent's box is ended; of the newest attempt number that came so far.

    `artifacts_key` is a blob: a tar whose names are places in a box. `folders` are emptied before it is
    unpacked there, so that what the agent deleted is gone. The package is the task as it was: its tests.
    """

    model_config = ConfigDict(frozen=True)

    attempt_number: int
    artifacts_key: str
    artifacts_sha256: str
    artifacts_bytes: int
    folders: tuple[str, ...]
    package_key: str
    package_sha256: str
    network: NetworkPolicy
    provider: str
