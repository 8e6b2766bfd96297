"""The end of a box that its provider does not let go, until it does."""

from __future__ import annotations

from pathlib import Path

from activities.ending import end_box
from store.database import Database
from store.incidents import list_incidents
from tests.providers.fast import FastProvider


async def test_a_later_try_that_is_allowed_ends_the_incident_of_an_earlier(
    db: Database, tmp_path: Path
) -> None:
    """A worker that dies after the refusal tries again, perhaps once the provider has come round."""
    provider = FastProvider(tmp_path)
    (provider.boxes / "box").mkdir()
    provider.faults.plan("destroy", "delete-refused")
    assert not await end_box(db, provider, "box")
    [incident] = await list_incidents(db, is_open_only=True)
    assert (incident["subject"], (provider.boxes / "box" / "stopped").exists()) == ("box", True)
    assert await end_box(db, provider, "box")
    assert await list_incidents(db, is_open_only=True) == []
    assert not (provider.boxes / "box").exists()
