"""A real API server on a real socket and a fresh database, and the published client pointed at it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio
from evolve import HostedClientConfig, HostedEvolve
from pydantic import SecretStr
from sqlmodel import SQLModel

from api.server import ApiServer, create_server
from api.settings import ApiSettings
from store.accounts import Caller, authenticate, create_user, ensure_owner, mint_key
from store.blobs import Blobs
from store.database import Database
from tests.postgres import PostgresServer


@dataclass(frozen=True)
class Api:
    """A running server with two users; `client` speaks as the first."""

    url: str
    key: str
    stranger_key: str
    read_only_key: str
    db: Database
    blobs: Blobs
    caller: Caller
    http: httpx.AsyncClient

    def published(self, key: str | None = None) -> HostedEvolve:
        """The published client."""
        return HostedEvolve(HostedClientConfig(base_url=self.url, api_key=key or self.key))

    def headers(self, key: str | None = None) -> dict[str, str]:
        return {"Authorization": f"Bearer {key or self.key}"}

    async def get(self, path: str, **query: Any) -> Any:
        return (await self.http.get(path, params=query)).json()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(server: ApiServer) -> Iterator[str]:
    """The server in a thread with a loop of its own; yields its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@dataclass(frozen=True)
class Running:
    """What the whole session shares: the server and its stores."""

    url: str
    settings: ApiSettings
    db: Database
    blobs: Blobs


@pytest_asyncio.fixture(scope="session")
async def running(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    """One server on one database; nothing answers at its Temporal address."""
    home = tmp_path_factory.mktemp("api")
    url = await asyncio.to_thread(postgres.create, "template_evolve")
    settings = ApiSettings(
        home=home,
        database_url=SecretStr(url),
        blob_url=f"file://{home}/blobs",
        temporal_address=f"127.0.0.1:{unused_port()}",
    )
    db = Database(url)
    with serving(create_server(settings)) as address:
        yield Running(address, settings, db, Blobs(settings.blob_url))
    await db.close()


async def empty(db: Database) -> None:
    """Every table as the migrations leave it."""
    kept = {"installation", "alembic_version"}
    # Rows are few: deleting them is several times faster than truncating two dozen tables.
    tables = [table.name for table in reversed(SQLModel.metadata.sorted_tables) if table.name not in kept]
    pool = await db.pool()
    await pool.execute("; ".join(f"DELETE FROM {name}" for name in tables))


@pytest_asyncio.fixture
async def api(running: Running) -> AsyncIterator[Api]:
    """The server with an empty database, an owner and a stranger."""
    db = running.db
    await empty(db)
    async with db.session() as session:
        owner = await ensure_owner(session)
        stranger = await create_user(session, "stranger@example.com", slug="stranger")
        _, key = await mint_key(session, owner.id, label="tests")
        _, read_only_key = await mint_key(session, owner.id, is_read_only=True)
        _, stranger_key = await mint_key(session, stranger.id)
    caller = await authenticate(db, key)
    assert caller is not None
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=30) as http:
        yield Api(running.url, key, stranger_key, read_only_key, db, running.blobs, caller, http)
