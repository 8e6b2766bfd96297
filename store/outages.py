"""Telling that Postgres or the blobs are away from everything else that can go wrong."""

from __future__ import annotations

import asyncpg
from obstore.exceptions import GenericError

BlobsAway = GenericError
"""What a blob store raises that is out of reach, or full: it may be well again later."""

# What Postgres says while it stops and starts, and what a socket says while it is away.
_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a connection that the server's death left in the middle of a word
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    ConnectionError,
    TimeoutError,
)


def is_database_away(error: BaseException) -> bool:
    """Whether an error means that Postgres cannot be reached now. An absent socket file means it too.

    That one names no file; nor does a blob's absence, which is no system call's and has no number.
    """
    if isinstance(error, FileNotFoundError):
        return error.filename is None and error.errno is not None
    return isinstance(error, _AWAY)
