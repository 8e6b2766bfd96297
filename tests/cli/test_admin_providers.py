"""`evolve admin providers`: what operators see of a provider's breaker, and how they override it."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import asyncpg
import pytest

from domain.breaker import Breaker
from store.database import Database
from store.provider_health import write_health
from tests.cli.conftest import Evolve

SINCE = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def operated(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database that the command line works on."""
    monkeypatch.setenv("EVOLVE_DATABASE_URL", database_url)
    return database_url


async def hold(url: str) -> None:
    db = Database(url)
    await write_health(db, "docker", Breaker().held_open(SINCE))
    await db.close()


async def orders(url: str) -> list[tuple[str, str]]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        "SELECT subject_id, payload ->> 'order' AS word FROM intents"
        " WHERE kind = 'provider.order' ORDER BY id"
    )
    await connection.close()
    return [(row["subject_id"], row["word"]) for row in rows]


def test_providers_are_listed_with_why_and_since_when(operated: str, evolve: Evolve) -> None:
    asyncio.run(hold(operated))
    assert evolve("admin", "providers", "list").rows[-1] == [
        "docker", "open", "2026-03-01T00:00:00+00:00", "yes", "an operator has paused this provider",
    ]  # fmt: skip
    [listed] = json.loads(evolve("admin", "providers", "list", "--json").out)
    assert (listed["provider"], listed["is_held"]) == ("docker", True)


def test_an_operators_word_waits_for_delivery(operated: str, evolve: Evolve) -> None:
    assert evolve("admin", "providers", "pause", "docker").out == "docker is asked to pause\n"
    assert evolve("admin", "providers", "resume", "docker").out == "docker is asked to resume\n"
    assert asyncio.run(orders(operated)) == [("docker", "open"), ("docker", "close")]


def test_a_provider_that_does_not_exist_is_refused(operated: str, evolve: Evolve) -> None:
    assert evolve("admin", "providers", "pause", "nowhere").exit_code == 2
