"""From an exception to what Temporal does next: try again, or tell the workflow what kind of failure it is.

Away is not dead: a lost database, Temporal or blob store is tried again without limit. A typed failure of
ours is final for this activity and carries `{phase, signature, code}` for the workflow's policy, which owns
every retry and every wait: a lack of capacity too. Anything else is a bug: tried a few times, since it may
be a passing fault we have not named, then final.
"""

from __future__ import annotations

import asyncio
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

current_phase: ContextVar[AttemptPhase | None] = ContextVar("current_phase", default=None)
"""Set by an activity of a trial as it goes; a failure names the phase it happened in."""

TRANSIENT = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
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
    """What the workflow or the server's retry gets to see; `tries` counts from 1."""
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


class FailureInterceptor(Interceptor):
    """Puts the translation around every activity."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Translating(next)


class _Translating(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        with structlog.contextvars.bound_contextvars(activity=info.activity_type, tries=info.attempt):
            try:
                return await super().execute_activity(input)
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
                raise translate(error, info.attempt) from None
