"""Where the tasks of a dataset are built."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.api.conditions import until
from tests.factories import task_files
from tests.inprocess import Platform


async def add_host(platform: Platform, host_id: str, provider: str, *, lease: str = "1 hour") -> None:
    """A host that nobody works for, with a newer lease than ours."""
    await until(platform.db, "SELECT EXISTS (SELECT FROM hosts)")
    await platform.rows(
        "INSERT INTO hosts SELECT $1::text, $2, $3, '', $1::text, $1::text || '-follow', cpus, memory_mb,"
        " code_version, now() + $4::text::interval FROM hosts LIMIT 1",
        host_id,
        {provider: {"ok": True}},
        provider,
        lease,
    )


async def built_images(platform: Platform) -> list[Any]:
    return [row["images"] for row in await platform.rows("SELECT images FROM dataset_tasks")]


async def test_a_task_is_built_by_a_host_that_serves_the_provider_it_is_built_for(
    platform: Platform,
) -> None:
    await add_host(platform, "other", "docker")
    async with asyncio.timeout(30):
        assert await platform.publish("demo", task_files("alpha")) == "COMPLETED"
    assert [list(images) for images in await built_images(platform)] == [["local"]]
