"""Telling that Postgres is away from everything else that can go wrong."""

from __future__ import annotations

import asyncpg

# What Postgres says while it stops and starts, and what a socket says while it is away.
_AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    ConnectionError,
    TimeoutError,
)


def is_database_away(error: BaseException) -> bool:
    """Whether an error means that Postgres cannot be reached now. An absent socket file means it too."""
    if isinstance(error, FileNotFoundError):
        return error.filename is None
    return isinstance(error, _AWAY)
