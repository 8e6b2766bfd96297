"""What the gateway adds to a call: time to the first byte, and CPU of a stream of 50 chunks.

In one run and alternated: a direct call, a raw aiohttp relay, the gateway on a ledger with synchronous
commits, and a relay made of LiteLLM's SDK.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import aiohttp

from domain.prices import Rates, ServiceRates
from store.database import Database, now
from store.keys import GrantedModel, KeyPlan, mint_key
from store.migrations import upgrade
from store.prices import set_price
from store.server_secret import ServerSecret
from tests.bench.cpu import tree_cpu_ms
from tests.bench.figures import Figure, print_table
from tests.postgres import running_postgres

ROUNDS = 3
SECRET = "a server secret of this bench, long enough"
MODEL = GrantedModel(name="lab/m", provider="lab", upstream_model="m")
# As large as harnesses' requests are even for a short prompt (facts/harnesses.md).
PROMPT = "A line of a system prompt that a harness sends with each of its requests.\n" * 1000
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_OFFLINE_MODE": "true",
}


class Peer:
    """A process that answers chat calls on a port."""

    def __init__(self, name: str, port: int, process: subprocess.Popen[bytes]) -> None:
        self.name, self.port, self.process = name, port, process
        self.first_byte_ms: list[float] = []
        self.cpu_ms: list[float] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def measure(requests: int = 150) -> list[Figure]:
    """Three rounds of `requests` for each path, four at once."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evolve-bench-")))
        url = stack.enter_context(running_postgres(has_fsync=True)).create()
        key = asyncio.run(_prepared(url))
        provider = stack.enter_context(_peer("provider"))
        raw = stack.enter_context(_peer("raw", provider.url))
        sdk = stack.enter_context(_peer("sdk", provider.url))
        gateway = stack.enter_context(_gateway(directory, url, provider.url))
        commits: list[float] = []
        for _ in range(ROUNDS):
            for peer in (provider, raw, gateway, sdk):
                asyncio.run(_load(peer, key, requests))
            commits.append(asyncio.run(_commit_ms(url)))
    return _figures(provider, raw, gateway, sdk, commits)


def _figures(provider: Peer, raw: Peer, gateway: Peer, sdk: Peer, commits: list[float]) -> list[Figure]:
    def added(peer: Peer) -> list[float]:
        pairs = zip(peer.first_byte_ms, provider.first_byte_ms, strict=True)
        return [mine - direct for mine, direct in pairs]

    beyond = [mine - commit for mine, commit in zip(added(gateway), commits, strict=True)]
    of_raw = [mine / other for mine, other in zip(gateway.cpu_ms, raw.cpu_ms, strict=True)]
    of_sdk = [other / mine for mine, other in zip(gateway.cpu_ms, sdk.cpu_ms, strict=True)]
    return [
        Figure("first byte, direct, p50", provider.first_byte_ms, "ms"),
        Figure("added by a raw relay, p50", added(raw), "ms"),
        Figure("added by LiteLLM's SDK, p50", added(sdk), "ms"),
        Figure("one synchronous commit, p50", commits, "ms"),
        Figure("added by the gateway, p50", added(gateway), "ms"),
        Figure("added by the gateway beyond one commit", beyond, "ms", 3),
        Figure("CPU of a 50-chunk stream, raw relay", raw.cpu_ms, "ms"),
        Figure("CPU of a 50-chunk stream, LiteLLM's SDK", sdk.cpu_ms, "ms"),
        Figure("CPU of a 50-chunk stream, gateway", gateway.cpu_ms, "ms"),
        Figure("gateway's CPU against the raw relay's", of_raw, "×", 1.5),
        Figure("the SDK's CPU against the gateway's", of_sdk, "×", 4, is_at_most=False),
    ]


async def _load(peer: Peer, key: str, requests: int) -> None:
    waits: list[float] = []
    body = {
        "model": MODEL.name,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": PROMPT}],
    }

    async def call(client: aiohttp.ClientSession) -> None:
        began = time.perf_counter()
        headers = {"authorization": f"Bearer {key}"}
        async with client.post(peer.url + "/v1/chat/completions", json=body, headers=headers) as answer:
            await answer.content.readany()
            waits.append((time.perf_counter() - began) * 1000)
            assert b"[DONE]" in await answer.read()

    async def worker(client: aiohttp.ClientSession, count: int) -> None:
        for _ in range(count):
            await call(client)

    async with aiohttp.ClientSession() as client:
        await worker(client, 8)  # warm
        waits.clear()
        before = tree_cpu_ms(peer.process.pid)
        await asyncio.gather(*(worker(client, requests // 4) for _ in range(4)))
        spent = tree_cpu_ms(peer.process.pid) - before
    peer.first_byte_ms.append(statistics.median(waits))
    peer.cpu_ms.append(spent / len(waits))


async def _prepared(url: str) -> str:
    await upgrade(url)
    db = Database(url)
    price = ServiceRates(rates=Rates(input=1_000_000_000, output=5_000_000_000))
    await set_price(db, MODEL.provider, MODEL.upstream_model, price)
    plan = KeyPlan(
        role="agent", job_id="job", trial_id="trial", attempt_number=1, owner_user_id="ann", org_id="lab",
        models=(MODEL,), cap_nanos=10**15, max_in_flight=100, expires_at=now() + timedelta(hours=1),
    )  # fmt: skip
    key = await mint_key(db, ServerSecret(SECRET), plan)
    await db.close()
    return key


async def _commit_ms(url: str) -> float:
    import asyncpg

    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE IF NOT EXISTS bench_commits (n int)")
    waits: list[float] = []
    for number in range(200):
        began = time.perf_counter()
        await connection.execute("INSERT INTO bench_commits VALUES ($1)", number)
        waits.append((time.perf_counter() - began) * 1000)
    await connection.close()
    return statistics.median(waits)


@contextmanager
def _peer(role: str, *upstream: str) -> Iterator[Peer]:
    port = _free_port()
    argv = [sys.executable, "-m", "tests.bench.gateway_peers", role, str(port), *upstream]
    with _running(role, port, argv, {**os.environ, **QUIET}) as peer:
        yield peer


@contextmanager
def _gateway(home: Path, database_url: str, upstream: str) -> Iterator[Peer]:
    port = _free_port()
    environment = {
        **os.environ,
        "EVOLVE_HOME": str(home),
        "EVOLVE_DATABASE_URL": database_url,
        "EVOLVE_SECRET_KEY": SECRET,
        "EVOLVE_GATEWAY_PORT": str(port),
        "EVOLVE_UPSTREAMS": f'{{"lab": {{"base_url": "{upstream}", "auth": "none"}}}}',
    }
    argv = [sys.executable, "-P", "-m", "cli.main", "serve", "gateway"]
    with _running("gateway", port, argv, environment) as peer:
        yield peer


@contextmanager
def _running(name: str, port: int, argv: list[str], environment: dict[str, str]) -> Iterator[Peer]:
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert process.poll() is None, f"{name} did not start"
            assert time.monotonic() < deadline, f"{name} does not listen"
            time.sleep(0.1)
        yield Peer(name, port, process)
    finally:
        process.terminate()
        process.wait(15)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=150)
    print_table(measure(parser.parse_args().requests))
