"""Alembic migrations, run by `evolve migrate` under an advisory lock. Expand first, contract a release
later, so that code one release older still runs."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from domain.errors import EvolveError

LOCK_KEY = 7_303_014_101  # any constant of our own
MINT_INSTALLATION = """
INSERT INTO installation (id, created_at)
SELECT gen_random_uuid()::text, now() WHERE NOT EXISTS (SELECT FROM installation)
"""


class SchemaOutdated(EvolveError):
    """The database is not at the revision this code needs; the message says which and what to run."""

    code = "schema_outdated"


def alembic_config() -> Config:
    """Alembic pointed at this package."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    return config


def _async_url(url: str) -> str:
    return url.replace("postgresql://", "postgresql+asyncpg://", 1)


def _run(connection: Connection) -> None:
    config = alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


async def upgrade(url: str) -> None:
    """Bring the database at `url` to this code's revision; a second one at the same time waits."""
    engine = create_async_engine(_async_url(url))
    try:
        async with engine.begin() as connection:
            await connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
            await connection.run_sync(_run)
            await connection.execute(text(MINT_INSTALLATION))
    finally:
        await engine.dispose()


async def _revision(connection: AsyncConnection) -> str | None:
    return await connection.run_sync(lambda c: MigrationContext.configure(c).get_current_revision())


async def check(url: str) -> None:
    """Raise `SchemaOutdated` unless the database knows this code's revision.

    A newer database is accepted: migrations only expand within one release.
    """
    engine = create_async_engine(_async_url(url))
    try:
        async with engine.connect() as connection:
            found = await _revision(connection)
    finally:
        await engine.dispose()
    script = ScriptDirectory.from_config(alembic_config())
    known = {revision.revision for revision in script.walk_revisions()}
    if found is None or (found in known and found != script.get_current_head()):
        raise SchemaOutdated(
            f"the database is at revision {found or 'none'}, this code needs {script.get_current_head()}: "
            "run `evolve migrate`"
        )
