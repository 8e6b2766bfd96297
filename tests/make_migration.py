"""Write a new migration from the difference between the tables and the migrated schema: `make migration`."""

from __future__ import annotations

import asyncio
import sys

from alembic import command
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from store import migrations
from tests.postgres import running_postgres


async def _main(message: str, url: str) -> None:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))

    def autogenerate(connection: Connection) -> None:
        config = migrations.alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        command.revision(config, message, autogenerate=True)

    async with engine.begin() as connection:
        await connection.run_sync(autogenerate)
    await engine.dispose()


if __name__ == "__main__":
    with running_postgres() as server:
        asyncio.run(_main(sys.argv[1], server.create()))
