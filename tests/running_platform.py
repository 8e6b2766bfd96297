"""A running stack as its users and its operator see it: over HTTP, and by its database."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import asyncpg
import httpx
from pydantic_core import from_json

from cli.stack.home import Home
from tests.cli.stack_harness import SOURCE, Stack, wait_until
from tests.factories import tar_gz

JOB_ENDS = ("COMPLETED", "CANCELLED")
IMPORT_ENDS = ("COMPLETED", "FAILED")
PATIENCE_SEC = 150.0
# How a Postgres that was killed or starts answers.
AWAY = (OSError, asyncpg.PostgresConnectionError, asyncpg.OperatorInterventionError, asyncpg.InterfaceError)

# Processes of the stack run the tree that its tests are of, whatever the environment has installed.
OWN_SOURCE = {"PYTHONPATH": os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])}

Json = dict[str, Any]


class RunningPlatform:
    """One stack that is up. What was asked while a process of it is away is asked again."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        key = json.loads((stack.home / "credentials.json").read_text())["api_key"]
        self._http = httpx.Client(
            base_url=stack.api_url, headers={"Authorization": f"Bearer {key}"}, timeout=30, trust_env=False
        )
        self._runner = asyncio.Runner()

    def close(self) -> None:
        self._http.close()
        self._runner.close()

    def ask(self, method: str, route: str, **options: Any) -> httpx.Response:
        """One exchange that ended in 2xx; patient with a server that is away. For what may be repeated."""

        def answer() -> httpx.Response | None:
            try:
                response = self._http.request(method, route, **options)
            except httpx.TransportError:
                return None
            assert response.status_code < 400 or response.status_code >= 500, response.text
            return response if response.is_success else None

        return wait_until(answer, f"{method} {route} is answered", PATIENCE_SEC)

    def send_archive(self, name: str, archive: bytes) -> Json:
        """Publish an archive and wait for the import's end."""
        files = {"archive": ("corpus.tar.gz", archive, "application/gzip")}
        data = {"name": name, "version": "1"}
        response = self._http.post("/api/datasets/publish", data=data, files=files)
        assert response.status_code in (200, 201, 202), response.text
        return self.await_import(response.json()["id"])

    def await_import(self, import_id: str) -> Json:
        def ended() -> Json | None:
            job = self.ask("GET", f"/api/datasets/imports/{import_id}").json()
            return job if job["status"] in IMPORT_ENDS else None

        return wait_until(ended, f"import {import_id} ends", PATIENCE_SEC)

    def publish(self, name: str, files: Mapping[str, str]) -> None:
        """Publish tasks that all build."""
        ended = self.send_archive(name, tar_gz(files))
        assert ended["status"] == "COMPLETED", ended

    def start_job(self, body: Json, key: str) -> str:
        """Create a job, once, whatever has to be repeated; its id."""
        response = self.ask("POST", "/api/jobs", json=body, headers={"Idempotency-Key": key})
        return str(response.json()["id"])

    def await_job(self, job_id: str, patience_sec: float = PATIENCE_SEC) -> Json:
        def ended() -> Json | None:
            job = self.ask("GET", f"/api/jobs/{job_id}").json()
            return job if job["status"] in JOB_ENDS else None

        return wait_until(ended, f"job {job_id} ends", patience_sec)

    def trials(self, job_id: str) -> list[Json]:
        """All trials of a job."""
        found: list[Json] = []
        cursor: str | None = None
        while True:
            query = {"limit": "100"} if cursor is None else {"limit": "100", "cursor": cursor}
            page = self.ask("GET", f"/api/jobs/{job_id}/trials", params=query).json()
            found += page["items"]
            cursor = page.get("nextCursor")
            if not cursor:
                return found

    def trial_files(self, trial_id: str) -> dict[str, bytes]:
        """The trial's download: path below its folder → content."""
        response = self.ask("GET", f"/api/trials/{trial_id}/download", follow_redirects=True)
        with tarfile.open(fileobj=io.BytesIO(response.content)) as tar:
            return {
                member.name.partition("/")[2]: file.read()
                for member in tar
                if (file := tar.extractfile(member)) is not None
            }

    def rows(self, query: str, *arguments: object) -> list[Json]:
        """What the database holds; patient with one that is away."""

        def read() -> tuple[list[Json]] | None:
            try:
                return (self._runner.run(self._fetch(query, arguments)),)
            except AWAY:
                return None

        return wait_until(read, "the database answers", PATIENCE_SEC)[0]

    async def _fetch(self, query: str, arguments: tuple[object, ...]) -> list[Json]:
        connection = await self._connect()
        try:
            return [dict(row) for row in await connection.fetch(query, *arguments)]
        finally:
            await connection.close()

    async def _connect(self) -> Any:
        connection = await asyncpg.connect(Home(self.stack.home).database_url)
        await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=from_json, schema="pg_catalog")
        return connection

    @contextmanager
    def holding(self, query: str, *arguments: object) -> Iterator[None]:
        """Keep the locks that `query` takes, until the block ends or the database does."""
        connection = self._runner.run(self._connect())
        transaction = connection.transaction()
        self._runner.run(transaction.start())
        self._runner.run(connection.fetch(query, *arguments))
        try:
            yield
        finally:
            connection.terminate()

    def left_in_the_store(self) -> Json:
        """What must be empty when nothing runs: rooms taken, intents and output that wait."""
        counts = {
            "rooms": "SELECT count(*) AS n FROM box_leases WHERE state <> 'gone'",
            "intents": "SELECT count(*) AS n FROM intents WHERE delivered_at IS NULL",
            "chunks": "SELECT count(*) AS n FROM stream_chunks",
            "live trials": "SELECT count(*) AS n FROM trials WHERE finished_at IS NULL OR phase IS NOT NULL",
            "live jobs": "SELECT count(*) AS n FROM jobs WHERE finished_at IS NULL",
        }
        found = {what: self.rows(query)[0]["n"] for what, query in counts.items()}
        return {what: n for what, n in found.items() if n}
