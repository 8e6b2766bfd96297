"""The gateway process: the one door from boxes to models, on a loopback port and a unix socket for relays."""

from __future__ import annotations

import asyncio
import resource
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import structlog
from aiohttp import web

from gateway.app import Gateway
from gateway.catalog import Catalog
from gateway.forward import Forwarder
from gateway.ledger import Ledger
from gateway.scripted.script import load_scripts, script_prices
from gateway.scripted.server import ScriptedUpstream
from gateway.settings import GatewaySettings
from gateway.translation import Translation
from gateway.upstreams import upstreams
from store.database import Database, now
from store.server_secret import ServerSecret

log = structlog.get_logger()

# What is being answered at a stop may end; what does not is booked at its hold. A relay holds what comes
# later.
SHUTDOWN_TIMEOUT_SEC = 5.0


async def run_gateway(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `OSError` when the port is taken, `EvolveError` for settings
    that cannot be used."""
    _raise_file_limit()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serving(settings):
        log.info("gateway ready", port=settings.gateway_port, socket=str(settings.gateway_socket))
        await stop.wait()


def _raise_file_limit() -> None:
    """As many connections as the system lets us have: the boxes' relays hold up to 512 each."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@asynccontextmanager
async def serving(settings: GatewaySettings) -> AsyncGenerator[Gateway]:
    """The gateway, answering on its port and its socket while in the context."""
    started_at = now()
    async with opened(settings) as gateway:
        runner = await gateway.runner(SHUTDOWN_TIMEOUT_SEC)
        try:
            # The port first: a second gateway fails there, before it could take the socket from the first
            # or book the first's calls.
            await web.TCPSite(runner, settings.gateway_host, settings.gateway_port).start()
            await gateway.ledger.book_left_holds(started_at)
            prepare_socket(settings.gateway_socket)
            await web.UnixSite(runner, settings.gateway_socket).start()
            settings.gateway_socket.chmod(0o600)
            yield gateway
        finally:
            await runner.cleanup()


@asynccontextmanager
async def opened(settings: GatewaySettings) -> AsyncGenerator[Gateway]:
    """The gateway's parts, not yet listening. Raises `EvolveError` for settings that cannot be used."""
    secret = ServerSecret.of(settings)
    async with AsyncExitStack() as stack:
        db = Database(settings.database_url.get_secret_value())
        stack.push_async_callback(db.close)
        scripts = {} if settings.scripted_upstream is None else load_scripts(settings.scripted_upstream)
        socket = await _serve_scripts(stack, ScriptedUpstream(scripts)) if scripts else None
        catalog = Catalog(
            db,
            secret,
            upstreams(settings.upstreams, socket),
            settings.provider_keys(),
            script_prices(scripts),
        )
        ledger = Ledger(db, secret, settings.gateway_id)
        stack.push_async_callback(ledger.close)
        forwarder = Forwarder()
        stack.push_async_callback(forwarder.close)
        translation = Translation(forwarder)
        await stack.enter_async_context(translation.serving())
        yield Gateway(ledger, catalog, forwarder, translation)


async def _serve_scripts(stack: AsyncExitStack, scripted: ScriptedUpstream) -> Path:
    """On a socket in a directory that nobody else enters; boxes get the gateway's own socket only."""
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="evolve-scripted-"))
    socket = Path(directory) / "scripted.sock"
    await stack.enter_async_context(scripted.serving(socket))
    return socket


def prepare_socket(path: Path) -> None:
    """A directory that only we enter, and no socket of an earlier gateway in it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
