"""Fixtures shared by every room's tests."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from store.blobs import Blobs
from store.database import Database
from store.migrations import upgrade
from tests.postgres import PostgresServer, running_postgres

# What a check that several tests share had found is told as fully as for a test's own assertion.
pytest.register_assert_rewrite("tests.chaos", "tests.cli", "tests.e2e", "tests.running_platform")

# A runner that was started in the background ignores SIGINT, and so would every child: Ctrl-C is tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server a session (and xdist worker); its database `template_evolve` holds the migrated schema."""
    with running_postgres() as server:
        asyncio.run(_make_template(server))
        yield server


async def _make_template(server: PostgresServer) -> None:
    import asyncpg

    connection = await asyncpg.connect(server.url("postgres"))
    await connection.execute("CREATE DATABASE template_evolve")
    await connection.close()
    await upgrade(server.url("template_evolve"))


@pytest.fixture
def database_url(postgres: PostgresServer) -> str:
    """A fresh migrated database of this test's own."""
    import threading

    made: list[str] = []
    thread = threading.Thread(target=lambda: made.append(postgres.create("template_evolve")))
    thread.start()
    thread.join()
    return made[0]


@pytest_asyncio.fixture
async def db(database_url: str) -> AsyncIterator[Database]:
    """An open `Database` on a fresh migrated schema."""
    database = Database(database_url)
    yield database
    await database.close()


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    """A blob store in a directory of this test's own."""
    return Blobs(f"file://{tmp_path}/blobs")
