"""A real API server on a real socket and a fresh database, and the published client pointed at it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from evolve import HostedClientConfig, HostedEvolve
from pydantic import SecretStr

from api.server import ApiServer, create_server
from api.settings import ApiSettings
from store.accounts import Caller, authenticate, create_user, ensure_owner, mint_key
from store.blobs import Blobs
from store.database import Database


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


@pytest.fixture
def api_settings(database_url: str, tmp_path: Path) -> ApiSettings:
    return ApiSettings(
        home=tmp_path,
        database_url=SecretStr(database_url),
        blob_url=f"file://{tmp_path}/blobs",
        temporal_address=f"127.0.0.1:{unused_port()}",
    )


@pytest_asyncio.fixture
async def api(api_settings: ApiSettings, db: Database, blobs: Blobs) -> AsyncIterator[Api]:
    async with db.session() as session:
        owner = await ensure_owner(session)
        stranger = await create_user(session, "stranger@example.com", slug="stranger")
        _, key = await mint_key(session, owner.id, label="tests")
        _, read_only_key = await mint_key(session, owner.id, is_read_only=True)
        _, stranger_key = await mint_key(session, stranger.id)
    caller = await authenticate(db, key)
    assert caller is not None
    with serving(create_server(api_settings)) as url:
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as http:
            yield Api(url, key, stranger_key, read_only_key, db, blobs, caller, http)
