"""Calls in a protocol that their upstream does not speak: through the translator, and out by the inner door.

    client ──Messages──▶ gateway ──▶ translator (LiteLLM) ──Chat──▶ inner door ──Chat──▶ provider

The call is admitted and held when it comes in, and metered at the inner door from the provider's own bytes.
The door opens once for each call, under a name that only the translator was told.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import aiohttp
import structlog
from aiohttp import web

from gateway.calls import OpenCall, UpstreamError
from gateway.forward import READ_TIMEOUT_SEC, Forwarder, Outgoing, read_error
from gateway.idle_watch import IdleWatch
from gateway.json_text import JsonObject
from gateway.operator_faults import UpstreamFailure, failure_of
from gateway.protocols import Dialect
from gateway.translator import MODEL_HEADER, URL_HEADER
from gateway.translator_process import TranslatorPool

log = structlog.get_logger()

_UNREACHED = UpstreamError(
    502, "the provider cannot be reached", {}, UpstreamFailure("connect", is_ours=False), end="failed"
)


@dataclass(frozen=True)
class InnerCall:
    """A call of a client's `dialect`, and what the inner door asks for it: `chat` lacks only its body.
    `max_tokens` is what was admitted."""

    call: OpenCall
    dialect: Dialect
    chat: Outgoing
    max_tokens: int
    max_tokens_name: str


class Translation:
    """Use `serving` around the life of the gateway."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder
        self._pool = TranslatorPool()
        self._expected: dict[str, InnerCall] = {}
        self._door = ""

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Open the inner door, on a loopback port of its own."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/{name}/v1/chat/completions", self._answer_inner)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=False, shutdown_timeout=0.5)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self._door = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield
        finally:
            await self._pool.close()
            await runner.cleanup()

    async def answer(self, request: web.Request, inner: InnerCall, body: bytes) -> web.StreamResponse:
        """As `Forwarder.answer`, of a call that is translated."""
        name = secrets.token_urlsafe(24)
        call = inner.call
        call.may_be_billed = False
        self._expected[name] = inner
        try:
            async with self._pool.borrowed() as process:
                outgoing = Outgoing(
                    url=f"http://translator/{inner.dialect}",
                    query={},
                    headers={MODEL_HEADER: call.row.model, URL_HEADER: f"{self._door}/{name}/v1"},
                    body=body,
                    dialect=inner.dialect,
                    socket=process.socket,
                    provider_key=None,
                )
                return await self._forwarder.answer(request, call, outgoing)
        finally:
            self._expected.pop(name, None)
            call.end_cancelled("translator")

    async def _answer_inner(self, request: web.Request) -> web.StreamResponse:
        """The translator's own call: once, bounded as it was admitted, and metered."""
        inner = self._expected.pop(request.match_info["name"], None)
        if inner is None:
            return _no_such_call()
        body = _bounded(JsonObject.of_bytes(await request.read()), inner)
        if inner.call.is_ended:  # its translator died meanwhile, and it was booked as never asked
            return _no_such_call()
        inner.call.may_be_billed = True
        try:
            async with await self._forwarder.ask(replace(inner.chat, body=body)) as upstream:
                inner.call.http_status = upstream.status
                inner.call.may_be_billed = upstream.status == 200
                if upstream.status != 200:
                    return await _relay_error(inner, upstream)
                return await _relay(request, inner.call, upstream)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            _note_error(inner.call, _UNREACHED)
            return web.json_response({"error": {"message": "unreachable"}}, status=502)
        except (aiohttp.ClientError, TimeoutError, OSError):
            inner.call.is_upstream_cut = True
            return web.json_response({"error": {"message": "cut"}}, status=502)


def _no_such_call() -> web.Response:
    return web.json_response({"error": {"message": "no such call"}}, status=404)


def _note_error(call: OpenCall, error: UpstreamError) -> None:
    """The provider did nothing."""
    call.upstream_error, call.may_be_billed = error, False


def _bounded(body: JsonObject, inner: InnerCall) -> bytes:
    """The translator's body within what was held for it."""
    for name in ("max_tokens", "max_completion_tokens"):
        if name in body.values:
            body.drop(name)
    body.set((inner.max_tokens_name,), inner.max_tokens)
    body.set(("stream_options", "include_usage"), True)
    return body.encode()


async def _relay_error(inner: InnerCall, upstream: aiohttp.ClientResponse) -> web.Response:
    """For the client, and for the translator, which needs no more than that there was one."""
    body = inner.chat.without_key(await read_error(upstream))
    failure = failure_of(upstream.status, body)
    headers = inner.chat.without_key_headers(_retry_headers(upstream.headers))
    _note_error(inner.call, UpstreamError(upstream.status, _message(body), headers, failure))
    if failure.is_ours:
        log.error("provider refuses our access", provider=inner.call.row.provider, error_kind=failure.kind)
        body = json.dumps({"error": {"message": "refused"}}).encode()
    return web.Response(status=upstream.status, body=body, content_type="application/json")


async def _relay(
    request: web.Request, call: OpenCall, upstream: aiohttp.ClientResponse
) -> web.StreamResponse:
    """To the translator, and on to the end when that has heard enough."""
    call.meter.is_stream = upstream.content_type == "text/event-stream"
    response = web.StreamResponse(headers={"content-type": upstream.content_type})
    await response.prepare(request)
    is_heard = True
    with IdleWatch(READ_TIMEOUT_SEC, upstream.close) as watch:
        try:
            async for chunk in upstream.content.iter_any():
                watch.touch()
                call.note_first_byte()
                call.meter.feed(chunk)
                is_heard = is_heard and await _write(response, chunk)
        except (aiohttp.ClientError, TimeoutError, OSError):
            call.is_upstream_cut = True
            call.error_kind = "timeout" if watch.is_expired else "cut"
            if request.transport is not None:
                request.transport.abort()
    return response


async def _write(response: web.StreamResponse, chunk: bytes) -> bool:
    try:
        await response.write(chunk)
    except OSError:
        return False
    return True


def _message(body: bytes) -> str:
    """The provider's own words, without their shape."""
    try:
        error = JsonObject.of_bytes(body).values.get("error")
    except ValueError:
        return "the provider answered with an error"
    message = error.get("message") if isinstance(error, dict) else error  # pyright: ignore
    return str(message)  # pyright: ignore


def _retry_headers(headers: Mapping[str, str]) -> dict[str, str]:
    names = ("retry-after", "retry-after-ms", "x-should-retry")
    return {name: headers[name] for name in names if name in headers}
