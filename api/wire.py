"""Below the routes: raw paths, request ids, and header names as the client needs them.

The published client reads `Content-Length` from a case-sensitive dict and `x-package-sha256` likewise
(contract §1.18), and sends `/` inside a segment as `%2F`, which is data (§1.5). So routes match the path
as it was sent (`api.segments` decodes each parameter), and one header name gets its capitals back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from uuid import uuid4

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.answers import as_api_error, error_answer
from domain.errors import ApiError

DRAIN_SEC = 30.0
_HEADER_CASE = {b"content-length": b"Content-Length"}


class Wire:
    """The outermost ASGI layer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = uuid4().hex
        body = _Body(receive)
        scope.setdefault("state", {})["request_id"] = request_id
        scope["path"] = scope["raw_path"].decode("ascii", "replace")
        has_started = False

        async def send_named(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                if message["status"] >= 400:
                    await body.drain()
                headers = [(_HEADER_CASE.get(name, name), value) for name, value in message["headers"]]
                message = {**message, "headers": [*headers, (b"x-request-id", request_id.encode())]}
            await send(message)

        try:
            _refuse_nul(scope)
            await self._app(scope, body.receive, send_named)
        except Exception as error:
            if has_started:
                raise
            await error_answer(as_api_error(error), request_id)(scope, receive, send_named)


class _Body:
    """The request's body, and whether it was read to its end.

    A client that still sends when its connection closes never sees the answer: so what a refusal left
    unread is thrown away before the refusal is sent, for a while.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._is_read = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._is_read = True
        return message

    async def drain(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SEC):
                while not self._is_read:
                    await self.receive()


def _refuse_nul(scope: Scope) -> None:
    """Postgres text holds no NUL, so nothing here is named by one."""
    if b"%00" in scope["raw_path"]:
        raise ApiError("not_found", "No such path.")
    if b"%00" in scope["query_string"]:
        raise ApiError("invalid_input", "The query holds a NUL character.")
