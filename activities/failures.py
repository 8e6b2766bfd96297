"""From an exception to what Temporal does next: try again, or tell the workflow what kind of failure it is.

Away is not dead: a lost database, Temporal or blob store is tried again without limit. A typed failure of
ours is final for this activity and carries `{phase, signature, code}` for the workflow's policy, which owns
every retry and every wait: a lack of capacity too. Anything else is a bug: tried a few times, since it may
be a passing fault we have not named, then final.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import asyncpg
import structlog
from sqlalchemy.exc import DBAPIError
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from domain.errors import EvolveError, InfrastructureFailure, ProviderUnreachable
from domain.vocabulary import AttemptPhase
from store.outages import BlobsAway, is_database_away

log = structlog.get_logger()

MESSAGE_MAX_CHARS = 8_000  # well below what Temporal carries
BUG_TRIES = 3
UNREACHABLE_TRIES = 30
HAND_OVER_DELAY = timedelta(milliseconds=50)
# A try that went well for so long before it failed begins the count anew: what followed an agent for an
# hour may meet as many passing faults as there are hours.
GOOD_FOR_SEC = 60.0
COUNTED_AT_ONCE = 10_000

current_phase: ContextVar[AttemptPhase | None] = ContextVar("current_phase", default=None)
"""Set by an activity of a trial as it goes; a failure names the phase it happened in."""

TRANSIENT = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server died in the middle of a word
    asyncpg.OperatorInterventionError,  # the server is shutting down or starting
    asyncpg.InsufficientResourcesError,
    asyncpg.TransactionRollbackError,  # deadlock, serialization
    asyncpg.IdleInTransactionSessionTimeoutError,  # this process was frozen or starved
    RPCError,
    BlobsAway,
)


def is_transient(error: BaseException) -> bool:
    """Whether the fault is another process of ours being away or busy."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or is_transient(error.orig or RuntimeError())
    if isinstance(error, FileNotFoundError | PermissionError):
        return is_database_away(error)
    return isinstance(error, TRANSIENT)


def translate(error: Exception, tries: int) -> ApplicationError:
    """What the workflow or the server's retry gets to see; `tries` counts failures in a row, from 1."""
    if isinstance(error, ProviderUnreachable) and tries < UNREACHABLE_TRIES:
        return _again(error)
    if isinstance(error, EvolveError):
        return _final(error, error.message)
    # A command in a box that never ends is as often the agent's doing as ours: not tried for ever.
    if is_transient(error) and not (isinstance(error, TimeoutError) and tries >= UNREACHABLE_TRIES):
        return _again(error)
    log.error("activity failed", error=repr(error), tries=tries, exc_info=error)
    if tries < BUG_TRIES:
        return _again(error)
    return _final(error, f"{type(error).__name__}: {error}")


def _again(error: Exception) -> ApplicationError:
    return ApplicationError(str(error)[:MESSAGE_MAX_CHARS], type=type(error).__name__)


def _final(error: Exception, message: str) -> ApplicationError:
    phase = current_phase.get()
    details: dict[str, Any] = {
        "phase": phase.value if phase else None,
        "signature": error.signature if isinstance(error, InfrastructureFailure) else None,
        "code": error.code if isinstance(error, EvolveError) else "internal_error",
        "param": error.param if isinstance(error, EvolveError) else None,
    }
    return ApplicationError(
        message[:MESSAGE_MAX_CHARS], details, type=type(error).__name__, non_retryable=True
    )


class FailureCount:
    """How often each activity has failed in a row, as this process saw it.

    Not Temporal's attempt, which also counts hand-overs and a worker's death: those are no failures of what
    was tried. After a restart the count begins anew, so it bounds a worker that lives, as it is meant to.
    """

    def __init__(self) -> None:
        self._failed: OrderedDict[tuple[str, str], int] = OrderedDict()

    def add(self, key: tuple[str, str], lasted_sec: float) -> int:
        """Note that a try failed after so long; returns the failures in a row, from 1."""
        before = self._failed.pop(key, 0) if lasted_sec < GOOD_FOR_SEC else 0
        self._failed[key] = before + 1
        if len(self._failed) > COUNTED_AT_ONCE:
            self._failed.popitem(last=False)
        return before + 1

    def forget(self, key: tuple[str, str]) -> None:
        """It went well."""
        self._failed.pop(key, None)


class FailureInterceptor(Interceptor):
    """Puts the translation around every activity."""

    def __init__(self) -> None:
        self._count = FailureCount()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Translating(next, self._count)


class _Translating(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, count: FailureCount) -> None:
        super().__init__(next)
        self._count = count

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info, began = activity.info(), time.monotonic()
        key = (info.workflow_run_id or "", info.activity_id)
        with structlog.contextvars.bound_contextvars(activity=info.activity_type, tries=info.attempt):
            try:
                result = await super().execute_activity(input)
                self._count.forget(key)
                return result
            except ApplicationError:
                raise
            except asyncio.CancelledError:
                details = activity.cancellation_details()
                if details is not None and details.worker_shutdown:
                    # The box goes on; another worker, or this one restarted, follows it at once.
                    raise ApplicationError(
                        "handed over", type="HandedOver", next_retry_delay=HAND_OVER_DELAY
                    ) from None
                raise
            except Exception as error:
                # `from None`: a traceback may show what a message must not.
                tries = self._count.add(key, time.monotonic() - began)
                raise translate(error, tries) from None
