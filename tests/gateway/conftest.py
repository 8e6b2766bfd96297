"""A gateway before a fake provider, on a real ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from pydantic import SecretStr

from domain.models import MODEL_PROVIDERS, SCRIPTED
from gateway.app import Gateway
from gateway.catalog import Catalog
from gateway.forward import Forwarder
from gateway.ledger import Ledger
from gateway.scripted.script import load_scripts, script_prices
from gateway.scripted.server import ScriptedUpstream
from gateway.translation import Translation
from gateway.upstreams import upstreams
from store.attempt_spend import CallRow, attempt_calls
from store.database import Database, now
from store.keys import GrantedModel, KeyPlan, mint_key
from store.server_secret import ServerSecret
from tests.gateway.fake_provider import FakeProvider

SECRET = ServerSecret("a server secret of these tests, long enough")
PROVIDER_KEY = "sk-provider-canary-1f8a"
DOLLAR = 1_000_000_000

GRANTED = (
    GrantedModel(name="opus", provider="anthropic", upstream_model="claude-opus-5-5"),
    GrantedModel(name="sol", provider="openai", upstream_model="gpt-6.1-sol"),
    GrantedModel(name="flash/x", provider="gemini", upstream_model="gemini-3.5-flash"),
    GrantedModel(name="kimi-k3", provider="moonshot", upstream_model="kimi-k3"),
    GrantedModel(name="unpriced", provider="openai", upstream_model="gpt-99"),
)


@dataclass
class Door:
    """A gateway that listens, and a client of it with a key."""

    db: Database
    url: str
    gateway: Gateway
    client: aiohttp.ClientSession
    provider: FakeProvider
    key: str = ""
    plan: KeyPlan | None = None
    keys: dict[str, KeyPlan] = field(default_factory=dict)

    async def mint(self, **changes: Any) -> str:
        """A key of a trial of its own; it becomes this door's when it is the first."""
        members: dict[str, Any] = {
            "role": "agent", "job_id": "job", "trial_id": f"trial-{len(self.keys)}", "attempt_number": 1,
            "owner_user_id": "ann", "org_id": "lab", "models": GRANTED, "cap_nanos": 100 * DOLLAR,
            "max_in_flight": 100, "expires_at": now() + timedelta(hours=1),
        }  # fmt: skip
        plan = KeyPlan(**{**members, **changes})
        key = await mint_key(self.db, SECRET, plan)
        self.keys[key] = plan
        if self.plan is None:
            self.key, self.plan = key, plan
        return key

    async def calls(self, key: str | None = None) -> list[CallRow]:
        """The key's rows in the ledger."""
        plan = self.keys[key or self.key]
        return await attempt_calls(self.db, plan.trial_id, plan.attempt_number)

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, bytes, aiohttp.ClientResponse]:
        """Status, whole body, and the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        auth = {"authorization": f"Bearer {self.key}"} if "key" not in headers else {}
        headers.pop("key", None)
        async with self.client.post(self.url + path, data=data, headers={**auth, **headers}) as answer:
            return answer.status, await answer.read(), answer


async def ended(door: Door, key: str | None = None) -> list[CallRow]:
    """The rows once no call is open."""
    while True:
        rows = await door.calls(key)
        if rows and all(row.status != "open" for row in rows):
            return rows
        await asyncio.sleep(0.01)


@asynccontextmanager
async def opened_door(
    db: Database, provider: FakeProvider, scripts: Path | None = None
) -> AsyncGenerator[Door]:
    async with AsyncExitStack() as stack:
        moved = {name: provider.url for name in MODEL_PROVIDERS if name != SCRIPTED}
        loaded = {} if scripts is None else load_scripts(scripts)
        socket = None
        if scripts is not None:
            socket = scripts.parent / "scripted.sock"
            await stack.enter_async_context(ScriptedUpstream(loaded).serving(socket))
        keys = {name: SecretStr(PROVIDER_KEY) for name in moved}
        catalog = Catalog(db, SECRET, upstreams(json.dumps(moved), socket), keys, script_prices(loaded))
        ledger = Ledger(db, SECRET, "gateway-1")
        stack.push_async_callback(ledger.close)
        forwarder = Forwarder()
        stack.push_async_callback(forwarder.close)
        translation = Translation(forwarder)
        await stack.enter_async_context(translation.serving())
        gateway = Gateway(ledger, catalog, forwarder, translation)
        runner = await gateway.runner(shutdown_timeout_sec=0.2)
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        client = await stack.enter_async_context(aiohttp.ClientSession(auto_decompress=False))
        yield Door(db, f"http://{host}:{port}", gateway, client, provider)


@pytest_asyncio.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    async with FakeProvider().serving() as fake:
        yield fake


@pytest_asyncio.fixture
async def door(db: Database, provider: FakeProvider) -> AsyncIterator[Door]:
    """A gateway with one key of $100."""
    async with opened_door(db, provider) as opened:
        await opened.mint()
        yield opened


@pytest.fixture
def write_scripts(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a YAML of scripts and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "scripts.yaml"
        path.write_text(text)
        return path

    return write
