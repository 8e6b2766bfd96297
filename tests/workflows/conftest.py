"""One Temporal server for the tests of workflows, and a worker of this process for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from store.database import Database
from tests.inprocess import Platform, inprocess_platform
from tests.temporal import running_temporal


@pytest.fixture(scope="session")
def temporal() -> Iterator[str]:
    with running_temporal() as address:
        yield address


@pytest_asyncio.fixture
async def platform(db: Database, temporal: str, tmp_path: Path) -> AsyncIterator[Platform]:
    async with inprocess_platform(db, temporal, tmp_path) as running:
        yield running
