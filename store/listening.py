"""Postgres NOTIFY as a callback: one connection that listens until it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg

CONNECT_TIMEOUT_SEC = 10


async def listen(
    url: str, channel: str, on_ready: Callable[[], None], on_notify: Callable[[str], None]
) -> None:
    """Call `on_ready` once listening, then `on_notify` with each payload.

    Returns when the connection is lost; raises what a failed connect raises.
    """
    connection: Any = await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_SEC)
    lost = asyncio.Event()

    def notified(_connection: Any, _pid: int, _channel: str, payload: object) -> None:
        on_notify(str(payload))

    def terminated(_connection: Any) -> None:
        lost.set()

    try:
        connection.add_termination_listener(terminated)
        await connection.add_listener(channel, notified)
        on_ready()
        await lost.wait()
    finally:
        connection.terminate()
