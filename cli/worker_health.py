"""`/healthz` of a worker: it has no port, so it answers on a unix socket of this machine."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web


@asynccontextmanager
async def worker_health(path: Path) -> AsyncGenerator[Callable[[], None]]:
    """Answer 503 until the yielded function is called, 200 from then on."""
    is_ready = False

    def set_ready() -> None:
        nonlocal is_ready
        is_ready = True

    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(
            {"status": "ok" if is_ready else "starting"}, status=200 if is_ready else 503
        )

    app = web.Application()
    app.router.add_get("/healthz", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    _clear(path)
    await web.UnixSite(runner, path).start()
    try:
        yield set_ready
    finally:
        await runner.cleanup()


def _clear(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.unlink(missing_ok=True)
