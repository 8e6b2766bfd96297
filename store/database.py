"""One door to Postgres: SQLModel sessions for most, an asyncpg pool for the hot append paths.

Every table's docstring names its kind: *plans and intents* (written once by the API, read by
activities), *ledgers and leases* (authoritative, locked), *records* (written by `record`, never read
to decide what happens next).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, ClassVar

import asyncpg
from pydantic_core import from_json, to_json
from sqlalchemy import BigInteger, DateTime
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlmodel import Column, SQLModel

# A backslash that is itself escaped begins no escape.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
POOL_MIN, POOL_MAX = 1, 12
# A process that is frozen inside a transaction keeps its locks no longer than this: its successor waits
# for them. Longer than anything of ours takes between two statements.
IDLE_IN_TRANSACTION_SEC = 30
_SERVER_SETTINGS = {"idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_SEC}s"}


class Row(SQLModel):
    """Base of all tables; gives `__tablename__` the type that SQLModel's own annotation does not."""

    __tablename__: ClassVar[Any]


def json_column(*, nullable: bool = False) -> Column[Any]:
    """A JSONB column; Python None is SQL NULL, never JSON null."""
    return Column(JSONB(none_as_null=True), nullable=nullable)


def time_column(*, nullable: bool = False) -> Column[Any]:
    """A point in time, always with its zone."""
    return Column(DateTime(timezone=True), nullable=nullable)


def nanos_column(*, nullable: bool = False) -> Column[Any]:
    """Money in integer nano-dollars; up to nine billion dollars."""
    return Column(BigInteger, nullable=nullable)


def now() -> datetime:
    """The present, in UTC."""
    return datetime.now(UTC)


def encode_json(value: Any) -> str:
    """JSON text for JSONB: NaN and infinity become null, as the contract wants (1.19).

    A NUL, which Postgres holds in no text, becomes U+FFFD: what a program in a box printed beside its
    output must not cost the record of its run.
    """
    text = to_json(value, inf_nan_mode="null").decode()
    return _NUL.sub(r"\1\\ufffd", text) if "\\u0000" in text else text


async def _prepare_connection(connection: Any) -> None:
    await connection.set_type_codec("jsonb", encoder=encode_json, decoder=from_json, schema="pg_catalog")


async def _leave_as_is(connection: Any) -> None:
    """No reset between borrowers: nobody here changes a session's state but within a transaction."""


class Database:
    """Connections to one Postgres. `url` is a libpq URL: `postgresql://user:password@/db?host=/socket/dir`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine: AsyncEngine = create_async_engine(
            url.replace("postgresql://", "postgresql+asyncpg://", 1),
            pool_size=5,
            max_overflow=10,
            json_serializer=encode_json,
            json_deserializer=from_json,
            connect_args={"server_settings": _SERVER_SETTINGS},
        )
        self._session_factory = async_sessionmaker(self.engine, expire_on_commit=False)
        self._pool: asyncpg.Pool | None = None
        self._pool_lock = asyncio.Lock()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        """A session in one transaction: committed at the end, rolled back on an error."""
        async with self._session_factory() as session, session.begin():
            yield session

    async def pool(self) -> asyncpg.Pool:
        """The asyncpg pool, made at first use; rows come with JSONB decoded."""
        async with self._pool_lock:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self.url,
                    min_size=POOL_MIN,
                    max_size=POOL_MAX,
                    init=_prepare_connection,
                    reset=_leave_as_is,
                    server_settings=_SERVER_SETTINGS,
                )
            return self._pool

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """An asyncpg connection in one transaction."""
        pool = await self.pool()
        async with pool.acquire() as connection, connection.transaction():
            yield connection

    async def close(self) -> None:
        """Give every connection back."""
        if self._pool is not None:
            await self._pool.close()
        await self.engine.dispose()
