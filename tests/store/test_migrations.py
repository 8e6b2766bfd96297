"""The migrated schema is the tables' schema."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection
from sqlmodel import SQLModel

import store.tables
from store import migrations
from store.database import Database
from store.installation import installation_id
from tests.postgres import PostgresServer


async def test_migrations_make_exactly_the_tables(db: Database) -> None:
    assert store.tables.__all__

    def difference(connection: Connection) -> list[object]:
        return compare_metadata(MigrationContext.configure(connection), SQLModel.metadata)

    async with db.engine.connect() as connection:
        assert await connection.run_sync(difference) == []


async def test_a_second_upgrade_changes_nothing(db: Database) -> None:
    before = await installation_id(db)
    await migrations.upgrade(db.url)
    assert await installation_id(db) == before


async def test_an_unmigrated_database_is_named(db: Database) -> None:
    async with db.transaction() as connection:
        await connection.execute("DELETE FROM alembic_version")
    with pytest.raises(migrations.SchemaOutdated, match=r"revision none.*evolve migrate"):
        await migrations.check(db.url)


async def test_a_current_database_passes_the_check(db: Database, postgres: PostgresServer) -> None:
    await migrations.check(db.url)
