"""`evolve admin host`: what operators see of worker hosts, and their word on one that will not come back."""

from __future__ import annotations

import asyncio
import json

import pytest

from store.database import Database, now
from store.hosts import Host, renew_host
from tests.cli.conftest import Evolve


@pytest.fixture
def hosts(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """`h1` lives, `h2` is away; the command line works on their database."""
    monkeypatch.setenv("EVOLVE_DATABASE_URL", database_url)
    asyncio.run(add_hosts(database_url))
    return database_url


async def add_hosts(url: str) -> None:
    db = Database(url)
    for name in ("h1", "h2"):
        offers = {"docker": {"ok": True, "paused": None}, "local": {"ok": False, "reason": "no"}}
        await renew_host(
            db,
            Host(
                id=name, providers=offers, default_provider="docker", default_reason="", queue=name,
                follow_queue=name, cpus=8, memory_mb=2000, code_version="0.1.0", lease_expires_at=now(),
            ),
        )  # fmt: skip
    pool = await db.pool()
    await pool.execute("UPDATE hosts SET lease_expires_at = '2026-03-01T00:00:00Z' WHERE id = 'h2'")
    await db.close()


@pytest.mark.usefixtures("hosts")
class TestHosts:
    def test_hosts_are_listed_with_their_lease_providers_and_boxes(self, evolve: Evolve) -> None:
        listed = json.loads(evolve("admin", "host", "list", "--json").out)
        assert [(row["id"], row["is_live"], row["providers"]) for row in listed] == [
            ("h1", True, {"docker": None}),
            ("h2", False, {"docker": None}),
        ]
        assert evolve("admin", "host", "list").rows[-1] == [
            "h2", "away", "2026-03-01T00:00:00+00:00", "docker", "0", "0 of 2000", "0.1.0",
        ]  # fmt: skip

    def test_a_host_that_is_away_is_dropped(self, evolve: Evolve) -> None:
        assert evolve("admin", "host", "drop", "h2").out == "dropped h2; trials told: 0 of 0\n"
        assert [row["id"] for row in json.loads(evolve("admin", "host", "list", "--json").out)] == ["h1"]

    def test_one_that_lives_and_one_that_is_unknown_are_refused_by_name(self, evolve: Evolve) -> None:
        lives, unknown = evolve("admin", "host", "drop", "h1"), evolve("admin", "host", "drop", "h3")
        assert (lives.exit_code, unknown.exit_code) == (1, 1)
        assert "h1 lives" in lives.err
        assert "no host h3" in unknown.err
