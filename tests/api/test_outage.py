"""While Postgres is away nothing crashes, nothing is forgotten, and streams stay open."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
from pydantic import SecretStr

from api.server import create_server
from api.settings import ApiSettings
from store import record
from store.accounts import authenticate, ensure_owner, mint_key
from store.database import Database
from store.migrations import upgrade
from tests.api.conftest import serving, unused_port
from tests.api.seeding import add_dataset
from tests.postgres import UNPRIVILEGED_UID, PostgresServer, _wait_ready, binaries, running_postgres


def kill(server: PostgresServer) -> None:
    """As the kernel would, with its children."""
    pid = int((server.socket_dir / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGQUIT)
    os.waitpid(pid, 0)  # a zombie would still look like a running server to the next one


@contextmanager
def restarted(server: PostgresServer) -> Iterator[None]:
    identity = {"user": UNPRIVILEGED_UID, "group": UNPRIVILEGED_UID} if os.geteuid() == 0 else {}
    command = [binaries() / "postgres", "-D", server.socket_dir / "data", "-k", server.socket_dir]
    process = subprocess.Popen(
        [*command, "-c", "listen_addresses="],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **identity,
    )  # fmt: skip
    try:
        _wait_ready(server.socket_dir, process)
        yield
    finally:
        process.send_signal(signal.SIGINT)  # fast: without waiting for clients to leave
        process.wait(30)


@asynccontextmanager
async def calling(database_url: str) -> AsyncIterator[tuple[httpx.AsyncClient, Database]]:
    db = Database(database_url)
    async with db.session() as session:
        owner = await ensure_owner(session)
        _, key = await mint_key(session, owner.id)
    caller = await authenticate(db, key)
    assert caller is not None
    await add_dataset(db, caller)
    with tempfile.TemporaryDirectory() as home:
        settings = ApiSettings(
            home=Path(home),
            database_url=SecretStr(database_url),
            temporal_address=f"127.0.0.1:{unused_port()}",
        )
        with serving(create_server(settings)) as url:
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
                yield http, db
    await db.close()


async def test_a_restart_of_the_database_is_waited_out():
    with running_postgres() as server:
        url = server.url("postgres")
        await upgrade(url)
        async with calling(url) as (http, db):
            body = {"datasets": [{"name": "demo"}], "agents": [{"name": "nop"}]}
            job_id = (await http.post("/api/jobs", json=body)).json()["id"]
            seen: asyncio.Queue[str] = asyncio.Queue()

            async def follow() -> None:
                async with http.stream("GET", f"/api/jobs/{job_id}/events") as answer:
                    async for line in answer.aiter_lines():
                        if line.startswith("event: "):
                            seen.put_nowait(line.removeprefix("event: "))

            following = asyncio.create_task(follow())
            assert await asyncio.wait_for(seen.get(), 10) == "job.created"
            await asyncio.to_thread(kill, server)
            for path in ("/api/jobs", f"/api/jobs/{job_id}/events"):
                answer = await http.get(path)
                error = answer.json()["error"]
                assert (answer.status_code, error["code"]) == (503, "credential_service_unavailable")
                assert error["retryAfterSec"] > 0
            assert (await http.get("/api/meta")).status_code == 200
            with restarted(server):
                assert (await http.get(f"/api/jobs/{job_id}")).json()["status"] == "QUEUED"
                await record.start_job(db, job_id)
                assert await asyncio.wait_for(seen.get(), 30) == "job.running"
                following.cancel()
