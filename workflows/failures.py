"""From what an activity raised to why an attempt has no verdict."""

from __future__ import annotations

from typing import cast

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    RetryState,
    TimeoutError,
    TimeoutType,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from activities.signatures import Failure, FailureKind
    from domain.causes import AGENT_BUILD_FAILED, BUDGET_REFUSED, TRAJECTORY_SEED
    from domain.errors import (
        CapacityWait,
        ExecChdirFailure,
        HealthcheckFailed,
        ProviderCreateFailure,
        ProviderUnreachable,
        SandboxDeath,
    )
    from domain.vocabulary import AttemptPhase


_KINDS: dict[str, FailureKind] = {BUDGET_REFUSED: "budget", TRAJECTORY_SEED: "incomplete"}
_SIGNATURES_IN_BOX = frozenset({SandboxDeath.signature, ExecChdirFailure.signature})
# The budget of waits is the trial's: a further attempt would find it used up. A build fails as it did.
_FINAL_CODES = frozenset({CapacityWait.code, AGENT_BUILD_FAILED})


def failure_of(error: BaseException) -> Failure | None:
    """What ends the attempt without a verdict; None for what must fail the workflow itself."""
    # Once it is cancelled, an activity whose worker died is not tried again.
    is_cut = isinstance(error, ActivityError) and error.retry_state is RetryState.CANCEL_REQUESTED
    if is_cancelled_exception(error) or is_cut:
        return Failure(kind="cancelled", message="The trial was stopped.")
    if not isinstance(error, ActivityError | ApplicationError):
        return None
    facts = _facts(error)
    code = facts.get("code")
    return Failure(
        kind=_KINDS.get(code or "", "infrastructure"),
        message=message_of(error),
        phase=facts.get("phase"),
        signature=facts.get("signature"),
        code=code,
        is_final=code in _FINAL_CODES,
    )


def is_capacity_wait(error: ActivityError) -> bool:
    """Whether a provider only has no room now: to be waited for, and no failure of the attempt."""
    return _facts(error).get("code") == CapacityWait.code and not _was_cancelled(error)


def was_never_begun(error: ActivityError) -> bool:
    """Whether no worker took it up, or took it up again, in the time that it might be queued."""
    cause = error.cause
    return isinstance(cause, TimeoutError) and cause.type is TimeoutType.SCHEDULE_TO_START


def is_create_failure(error: ActivityError) -> bool:
    """Whether the provider could not make the box, or does not answer at all."""
    facts = _facts(error)
    is_away = facts.get("code") == ProviderUnreachable.code
    return is_away or facts.get("signature") == ProviderCreateFailure.signature


def is_failure_in_box(error: ActivityError) -> bool:
    """Whether a box was made before what failed: the agent's install comes after, as does the rest here."""
    facts = _facts(error)
    is_of_box = facts.get("signature") in _SIGNATURES_IN_BOX or facts.get("code") == HealthcheckFailed.code
    return is_of_box or facts.get("phase") == AttemptPhase.INSTALL


def message_of(error: ActivityError | ApplicationError) -> str:
    """What people read."""
    cause = _cause(error)
    return cause.message if isinstance(cause, ApplicationError) else str(cause)


def _was_cancelled(error: ActivityError) -> bool:
    return error.retry_state is RetryState.CANCEL_REQUESTED


def _cause(error: ActivityError | ApplicationError) -> BaseException | None:
    """A local activity's failure comes as it is, a normal one's wrapped."""
    return error.cause if isinstance(error, ActivityError) else error


def _facts(error: ActivityError | ApplicationError) -> dict[str, str | None]:
    """`{phase, signature, code}` as `activities.failures` put them; empty for what is not ours."""
    cause = _cause(error)
    details = cause.details if isinstance(cause, ApplicationError) else ()
    return cast("dict[str, str | None]", details[0]) if details and isinstance(details[0], dict) else {}
