"""The gateway process: the one door from boxes to models, on a loopback port and a unix socket for relays.

No virtual key exists before keys are minted, so every model call is refused, in its protocol's shape.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import structlog
from aiohttp import web

from gateway.protocols import protocol_of, refusal
from gateway.settings import GatewaySettings

log = structlog.get_logger()

# What is being answered at a stop may end; a relay holds what comes later.
SHUTDOWN_TIMEOUT_SEC = 5.0


def make_app() -> web.Application:
    """The routes."""
    app = web.Application()
    app.router.add_get("/healthz", _answer_health)
    app.router.add_route("*", "/{path:.*}", _refuse)
    return app


async def run_gateway(settings: GatewaySettings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `OSError` when the port is taken."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    runner = web.AppRunner(make_app(), access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_SEC)
    await runner.setup()
    try:
        # The port first: a second gateway fails there, before it could take the socket from the first.
        await web.TCPSite(runner, settings.gateway_host, settings.gateway_port).start()
        prepare_socket(settings.gateway_socket)
        await web.UnixSite(runner, settings.gateway_socket).start()
        settings.gateway_socket.chmod(0o600)
        log.info("gateway ready", port=settings.gateway_port, socket=str(settings.gateway_socket))
        await stop.wait()
    finally:
        await runner.cleanup()


def prepare_socket(path: Path) -> None:
    """A directory that only we enter, and no socket of an earlier gateway in it."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)


async def _answer_health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _refuse(request: web.Request) -> web.Response:
    protocol = protocol_of(request.path, request.headers)
    if protocol is None:
        return web.json_response(refusal("openai", f"no route {request.path}"), status=404)
    log.info("refused", protocol=protocol, path=request.path, reason="no such key")
    return web.json_response(refusal(protocol, "no such key"), status=401)
