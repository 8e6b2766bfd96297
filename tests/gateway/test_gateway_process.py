"""The gateway as a process: what it does when it starts, and when it dies in the middle of a call."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest

from store.attempt_spend import attempt_calls
from store.database import Database, now
from store.keys import GrantedModel, KeyPlan, mint_key
from store.server_secret import ServerSecret

SECRET = "a server secret of these tests, long enough"
SCRIPT = """
models:
  slow:
    turns: [{text: one two three four five six, chunk_delay_sec: 0.2}]
  quick:
    turns: [{text: hi}]
"""
MODELS = tuple(
    GrantedModel(name=name, provider="scripted", upstream_model=name) for name in ("slow", "quick")
)


@pytest.fixture
def environment(tmp_path: Path, database_url: str) -> dict[str, str]:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "demo.yaml").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        **os.environ,
        "EVOLVE_HOME": str(tmp_path),
        "EVOLVE_DATABASE_URL": database_url,
        "EVOLVE_SECRET_KEY": SECRET,
        "EVOLVE_GATEWAY_PORT": str(port),
        "EVOLVE_GATEWAY_SOCKET": str(tmp_path / "gw.sock"),
        "EVOLVE_SCRIPTED_UPSTREAM": str(tmp_path / "scripts"),
        "EVOLVE_ANTHROPIC_API_KEY": "sk-canary-of-the-environment",
    }


@asynccontextmanager
async def running(environment: dict[str, str]) -> AsyncGenerator[asyncio.subprocess.Process]:
    """`evolve serve gateway`, once it is ready; ended with the context."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "cli.main", "serve", "gateway",
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        seen = b""
        while b"gateway ready" not in seen:
            line = await process.stdout.readline()
            seen += line
            assert line, seen.decode()
        assert b"canary" not in seen
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def over_socket(environment: dict[str, str]) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.UnixConnector(environment["EVOLVE_GATEWAY_SOCKET"]))


async def minted(db: Database) -> tuple[str, KeyPlan]:
    plan = KeyPlan(
        role="agent", job_id="job", trial_id="trial", attempt_number=1, owner_user_id="ann", org_id="lab",
        models=MODELS, cap_nanos=10**12, max_in_flight=10, expires_at=now() + timedelta(hours=1),
    )  # fmt: skip
    return await mint_key(db, ServerSecret(SECRET), plan), plan


async def ask(client: aiohttp.ClientSession, key: str, model: str) -> aiohttp.ClientResponse:
    body = {
        "model": model,
        "max_tokens": 100,
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
    }
    return await client.post("http://gateway/v1/messages", json=body, headers={"x-api-key": key})


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGKILL, "gateway_died"), (signal.SIGTERM, None)])
async def test_a_call_under_way_when_the_gateway_goes_has_one_row_and_is_booked(
    environment: dict[str, str], db: Database, number: int, kind: str | None
) -> None:
    key, plan = await minted(db)
    async with running(environment) as process, over_socket(environment) as client:
        answer = await ask(client, key, "slow")
        await answer.content.readany()
        process.send_signal(number)
        await process.wait()
        answer.close()
    async with running(environment), over_socket(environment) as client:
        rows = await attempt_calls(db, plan.trial_id, 1)
        assert len(rows) == 1
        if kind is None:  # a stop lets what is being answered end
            assert rows[0].status == "measured"
        else:
            assert (rows[0].status, rows[0].error_kind) == ("held", kind)
            assert rows[0].cost_nanos == rows[0].hold_nanos
        again = await ask(client, key, "quick")
        assert again.status == 200
        await again.read()
    assert [row.status for row in await attempt_calls(db, plan.trial_id, 1)][1:] == ["measured"]


async def test_settings_that_cannot_be_used_end_it_by_name(environment: dict[str, str]) -> None:
    environment["EVOLVE_UPSTREAMS"] = '{"lab": {"base_url": "ftp://x"}}'
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "cli.main", "serve", "gateway",
        env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode != 0
    assert b"EVOLVE_UPSTREAMS.lab.base_url" in output
