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
from collections.abc import Iterator, Sequence
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

ROUNDS, WARM = 3, 8
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
    """Three rounds of `requests` calls for the waits, one after the other, and as many at four at once for
    the CPU."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evolve-bench-")))
        url = stack.enter_context(running_postgres(has_fsync=True)).create()
        key = asyncio.run(_prepared(url))
        provider = stack.enter_context(_peer("provider"))
        raw = stack.enter_context(_peer("raw", provider.url))
        sdk = stack.enter_context(_peer("sdk", provider.url))
        gateway = stack.enter_context(_gateway(directory, url, provider.url))
        peers = (provider, raw, gateway, sdk)
        commits = [asyncio.run(_round(peers, key, url, requests)) for _ in range(ROUNDS)]
    return _figures(provider, raw, gateway, sdk, commits)


async def _round(peers: Sequence[Peer], key: str, url: str, requests: int) -> float:
    """Adds to each peer its median wait and its CPU; returns the median wait of a commit."""
    waits: dict[str, list[float]] = {peer.name: [] for peer in peers}
    commits: list[float] = []
    async with aiohttp.ClientSession() as client:
        db = Database(url)
        for number in range(WARM + requests):
            for peer in peers:
                wait = await _call(client, peer, key, max_tokens=1)
                if number >= WARM:
                    waits[peer.name].append(wait)
            commits.append(await _commit_ms(db))
        await db.close()
        for peer in peers:
            peer.first_byte_ms.append(statistics.median(waits[peer.name]))
            peer.cpu_ms.append(await _cpu_of_streams(client, peer, key, requests))
    return statistics.median(commits)


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


async def _call(client: aiohttp.ClientSession, peer: Peer, key: str, *, max_tokens: int) -> float:
    """Milliseconds to the first byte of the answer's body; the rest is read too."""
    body = {
        "model": MODEL.name,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": max_tokens,
        "messages": [{"role": "user", "content": PROMPT}],
    }
    began = time.perf_counter()
    headers = {"authorization": f"Bearer {key}"}
    async with client.post(peer.url + "/v1/chat/completions", json=body, headers=headers) as answer:
        first = await answer.content.readany()
        wait = (time.perf_counter() - began) * 1000
        assert b"[DONE]" in first + await answer.read()
        return wait


async def _cpu_of_streams(client: aiohttp.ClientSession, peer: Peer, key: str, requests: int) -> float:
    async def worker() -> None:
        for _ in range(requests // 4):
            await _call(client, peer, key, max_tokens=1000)

    before = tree_cpu_ms(peer.process.pid)
    await asyncio.gather(*(worker() for _ in range(4)))
    return (tree_cpu_ms(peer.process.pid) - before) / (requests // 4 * 4)


async def _commit_ms(db: Database) -> float:
    pool = await db.pool()
    await pool.execute("CREATE TABLE IF NOT EXISTS bench_commits (at timestamptz)")
    began = time.perf_counter()
    await pool.execute("INSERT INTO bench_commits VALUES (now())")
    return (time.perf_counter() - began) * 1000


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
