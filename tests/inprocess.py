"""A worker inside this process, on a real Temporal and Postgres, whose boxes are directories."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import SecretStr
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.bundles import Bundles
from activities.host import HostProviders, keep_lease
from activities.npm_registry import NpmRegistry
from activities.packages import TaskPackages
from activities.sandboxes.base import SandboxProvider
from activities.settings import WorkerSettings
from activities.trial_context import Hands
from activities.worker import make_workers
from cli.workflow_side import sandboxed, workflow_side
from store.blobs import Blobs
from store.database import Database
from store.installation import installation_id
from store.server_secret import ServerSecret
from tests.factories import make_import
from tests.providers.fast import FastProvider
from workflows import names
from workflows.dataset_import import DatasetImportWorkflow
from workflows.inputs import ImportInput

SECRET = "a secret for tests, long enough to be one"


@dataclass
class Platform:
    """Everything a test of a workflow touches."""

    client: Client
    db: Database
    blobs: Blobs
    provider: FastProvider
    queue: str

    async def publish(self, name: str, files: dict[str, str]) -> str:
        """Import a dataset; returns the import's status."""
        return await self._import(await make_import(self.db, self.blobs, name, files))

    async def publish_id(self, name: str, files: dict[str, str]) -> str:
        """Import a dataset; returns the import's id."""
        import_id = await make_import(self.db, self.blobs, name, files)
        assert await self._import(import_id) == "COMPLETED"
        return import_id

    async def _import(self, import_id: str) -> str:
        end = await self.client.execute_workflow(
            DatasetImportWorkflow.run,
            ImportInput(import_id=import_id),
            id=names.dataset_import_workflow_id(import_id),
            task_queue=self.queue,
        )
        return end.status

    async def rows(self, query: str, *arguments: object) -> list[dict[str, object]]:
        pool = await self.db.pool()
        return [dict(row) for row in await pool.fetch(query, *arguments)]


@asynccontextmanager
async def inprocess_platform(
    db: Database, temporal: str, root: Path, own_provider: SandboxProvider | None = None
) -> AsyncIterator[Platform]:
    """Everything below `root`; queues of its own, so that several share one Temporal."""
    settings = WorkerSettings(
        database_url=SecretStr(db.url),
        temporal_address=temporal,
        home=root,
        host_id=f"h-{uuid4().hex[:8]}",
        host_cpus=1000,
        host_memory_mb=1_000_000,
        scripted_upstream=root,
    )
    host = HostProviders(default="local", default_reason="test")
    provider = FastProvider(root / "state" / "fast")
    host.offer(own_provider or provider)
    blobs = Blobs(settings.blob_url)
    hands = Hands(
        settings=settings,
        db=db,
        blobs=blobs,
        installation_id=await installation_id(db),
        providers=host.providers,
        default_provider=host.default,
        capabilities=host.capabilities,
        packages=TaskPackages(root / "tasks", blobs),
        bundles=Bundles(settings.bundles_dir, NpmRegistry()),
        secret=ServerSecret(SECRET),
    )
    client = await Client.connect(temporal, namespace="evolve", data_converter=names.DATA_CONVERTER)
    side = workflow_side(queue=f"evolve-{uuid4().hex[:8]}", runner=sandboxed())
    lease = asyncio.create_task(keep_lease(db, settings, host))
    async with AsyncExitStack() as stack:
        for worker in make_workers(client, settings, hands, side):
            await stack.enter_async_context(worker)
        yield Platform(client, db, blobs, provider, side.queue)
    lease.cancel()
    await _end_breaker(client)


async def _end_breaker(client: Client) -> None:
    """The one workflow whose id says nothing of this platform: the next one's provider has the same name."""
    try:
        await client.get_workflow_handle(names.provider_workflow_id("local")).terminate()
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
