"""A provider of models in the test's own process: it speaks as scripts say, and counts its calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from gateway.scripted.script import load_scripts
from gateway.scripted.server import ScriptedUpstream
from tests.cli.stack_harness import free_ports


@dataclass
class OwnProvider:
    """`calls` are the paths it was asked, `keys` the credentials that came with them."""

    port: int
    calls: list[str] = field(default_factory=list[str])
    keys: list[str] = field(default_factory=list[str])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def own_provider(scripts: Path) -> Iterator[OwnProvider]:
    """Serve the scripts' models on a loopback port, in a thread, until the block ends."""
    provider = OwnProvider(free_ports(1)[0])
    loop = asyncio.new_event_loop()
    runner = loop.run_until_complete(_serve(provider, scripts))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _serve(provider: OwnProvider, scripts: Path) -> web.AppRunner:
    @web.middleware
    async def count(request: web.Request, handler: web.RequestHandler) -> web.StreamResponse:
        provider.calls.append(request.path)
        provider.keys.append(request.headers.get("x-api-key") or request.headers.get("authorization", ""))
        return await handler(request)

    app = ScriptedUpstream(load_scripts(scripts)).app()
    app.middlewares.append(count)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", provider.port).start()
    return runner
