"""What follows a settled attempt number: nothing, another one, or a broken circuit (contract 6.3).

Pure: the trial's workflow remembers the signatures, the activity that settles knows how the attempt ended,
and the store writes the verdict in the settle's own transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from pydantic import BaseModel, ConfigDict

from domain.retry_policy import RetryConfig
from domain.vocabulary import InfraFailureSignature, TrialStatus

FAILURES_TO_BREAK = 2  # in a row, of one signature


class EndedAttempt(BaseModel):
    """How one attempt number ended.

    `exception_names` are the contract's type and, where a cause has one, Harbor's. `signatures` are the
    failure classes of the attempt numbers so far, this one's last; None for a failure of no class.
    `is_last`: whatever the policy says, another attempt would be of no use or is not wanted.
    """

    model_config = ConfigDict(frozen=True)

    attempt_number: int
    status: TrialStatus
    exception_names: tuple[str, ...] = ()
    signatures: tuple[InfraFailureSignature | None, ...] = ()
    is_last: bool = False


class Settle(BaseModel):
    """The settle is the trial's end."""

    model_config = ConfigDict(frozen=True)


class RetryAfter(BaseModel):
    """The attempt number is retired; the next one begins after the wait."""

    model_config = ConfigDict(frozen=True)

    delay_sec: float
    max_retries: int


class BreakCircuit(BaseModel):
    """The settle is the trial's end although retries are left: they would fail in the same way."""

    model_config = ConfigDict(frozen=True)

    signature: InfraFailureSignature
    consecutive: int
    max_retries: int
    retries_unused: int

    def explain(self, message: str) -> str:
        """The exception's message with why there is no further attempt."""
        unused = f"{self.retries_unused} of {self.max_retries} retries unused"
        return (
            f"{message}\n\nNot retried: {self.consecutive} failures in a row were {self.signature}; {unused}."
        )


Verdict: TypeAlias = Settle | RetryAfter | BreakCircuit


def decide(policy: RetryConfig, ended: EndedAttempt) -> Verdict:
    """What follows. Only an infrastructure failure is retried, and only while the policy covers its names."""
    n_unused = policy.max_retries - (ended.attempt_number - 1)
    if ended.status is not TrialStatus.INFRASTRUCTURE_ERROR or ended.is_last or n_unused <= 0:
        return Settle()
    if not policy.covers(ended.exception_names):
        return Settle()
    consecutive = _consecutive(ended.signatures)
    signature = ended.signatures[-1] if ended.signatures else None
    if signature is not None and consecutive >= FAILURES_TO_BREAK:
        return BreakCircuit(
            signature=signature,
            consecutive=consecutive,
            max_retries=policy.max_retries,
            retries_unused=n_unused,
        )
    return RetryAfter(delay_sec=policy.delay_sec(ended.attempt_number), max_retries=policy.max_retries)


def _consecutive(signatures: Sequence[str | None]) -> int:
    """How many of the last ones are the same as the last."""
    n = 0
    for signature in reversed(signatures):
        if signature != signatures[-1]:
            break
        n += 1
    return n
