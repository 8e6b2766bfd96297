"""Runs the application under uvicorn, as the published client needs it."""

from __future__ import annotations

import socket

import uvicorn

from api.app import create_app
from api.platform import Platform
from api.settings import ApiSettings

# Downloads and event streams that are still open when the process is asked to end.
GRACE_SEC = 10


class ApiServer(uvicorn.Server):
    """A uvicorn server that ends its event streams before it waits for connections to close."""

    def __init__(self, config: uvicorn.Config, platform: Platform) -> None:
        super().__init__(config)
        self._platform = platform

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._platform.feed.end_streams()
        await super().shutdown(sockets)


def create_server(settings: ApiSettings) -> ApiServer:
    """The server of this process; `await server.serve()` runs it until a signal.

    h11 writes header names as they are given; the client looks for `Content-Length` in capitals.
    """
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.api_host,
        port=settings.api_port,
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SEC,
    )
    return ApiServer(config, app.state.platform)
