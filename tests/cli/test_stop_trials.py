"""`evolve down --stop-trials` while what would end the jobs is away."""

from __future__ import annotations

import pytest

from cli import store_side
from cli.errors import CliError
from store.database import Database
from tests.finished_jobs import accept, publish


async def test_a_wait_for_jobs_that_nobody_ends_is_over_with_a_word_on_what_to_do(
    db: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOLVE_DATABASE_URL", database_url)
    await publish(db, "alpha")
    job_id = await accept(db)
    told: list[str] = []
    with pytest.raises(CliError, match="1 cancelled job not ended") as raised:
        await store_side.cancel_all_jobs(told.append, patience_sec=0.2)
    assert raised.value.code == "jobs_not_ended"
    assert "`evolve status`" in raised.value.message
    assert told == ["waiting for the end of 1 cancelled job"]
    intents = await (await db.pool()).fetch("SELECT kind FROM intents WHERE subject_id = $1", job_id)
    assert "job.cancel" in {row["kind"] for row in intents}


async def test_nothing_is_waited_for_without_jobs(
    db: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOLVE_DATABASE_URL", database_url)
    await store_side.cancel_all_jobs(pytest.fail, patience_sec=0.2)
