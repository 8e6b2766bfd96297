"""Forwarding: bytes up, bytes down, and a meter beside them. One request is one request upstream.

The handler reads the upstream at the client's pace. When the client is gone it reads on, for providers bill
what they generate, until the usage is known or `DRAIN_SEC` have passed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog
from aiohttp import HttpVersion11, web

from gateway.calls import OpenCall
from gateway.denials import Denial
from gateway.headers import response_headers
from gateway.idle_watch import IdleWatch
from gateway.meter import MAX_WHOLE_BYTES
from gateway.native_errors import error_body
from gateway.operator_faults import failure_of
from gateway.protocols import PROTOCOL_OF, Dialect
from gateway.usage_chunk import UsageChunkFilter

log = structlog.get_logger()

CONNECT_TIMEOUT_SEC = 10.0
READ_TIMEOUT_SEC = 600.0
# A client that holds its connection and reads nothing is as good as gone.
WRITE_TIMEOUT_SEC = 600.0
DRAIN_SEC = 120.0
MAX_DRAINS = 256
MAX_COUNTS_OF_KEY = 8
MAX_COUNTS = 256
MAX_ERROR_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Outgoing:
    """A request as it goes upstream. `provider_key` is only for keeping it out of what comes back."""

    url: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    dialect: Dialect
    socket: Path | None
    provider_key: str | None
    hides_usage: bool = False

    def without_key(self, body: bytes) -> bytes:
        """What came back, with no provider's key in it."""
        key = self.provider_key
        return body.replace(key.encode(), b"[provider key]") if key else body

    def without_key_headers(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Those that hold no provider's key."""
        key = self.provider_key
        return {name: value for name, value in headers.items() if not key or key not in value}


class Forwarder:
    """The connections to upstreams, kept for all requests. Use as an async context manager."""

    def __init__(self) -> None:
        self._sessions: dict[Path | None, aiohttp.ClientSession] = {}
        self._n_drains = 0
        self._counting: Counter[str] = Counter()

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def ask(self, outgoing: Outgoing) -> aiohttp.ClientResponse:
        """The upstream's answer, its body unread. Raises what aiohttp does."""
        async with asyncio.timeout(READ_TIMEOUT_SEC):
            return await self._session(outgoing.socket).post(
                outgoing.url,
                params=outgoing.query,
                headers=outgoing.headers,
                data=outgoing.body,
                allow_redirects=False,
            )

    async def answer(self, request: web.Request, call: OpenCall, outgoing: Outgoing) -> web.StreamResponse:
        """Ask, relay, and book the end. Raises `Denial` when there is nothing to relay, its end booked."""
        try:
            if _is_gone(request):  # it may have waited long for its hold
                call.is_client_gone = True
                await call.end_unused("failed", "client_gone")
                raise Denial("unavailable", "the client is gone")
            return await self._answer(request, call, outgoing)
        finally:
            # Reached with the call unended only when this handler is cancelled or breaks.
            call.end_cancelled("gateway_stopped")

    async def count(self, outgoing: Outgoing, key_id: str) -> web.Response:
        """A count of tokens: free, so there is nothing to hold, but only so many at once. Raises `Denial`."""
        if self._counting[key_id] >= MAX_COUNTS_OF_KEY or self._counting.total() >= MAX_COUNTS:
            raise Denial("in_flight", "too many counts of tokens are under way")
        self._counting[key_id] += 1
        try:
            async with await self.ask(outgoing) as upstream:
                body = await read_up_to(upstream, MAX_ERROR_BYTES)
                if upstream.status != 200 and failure_of(upstream.status, body).is_ours:
                    raise access_refused()
                headers = outgoing.without_key_headers(response_headers(upstream.headers))
                return web.Response(status=upstream.status, body=outgoing.without_key(body), headers=headers)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Denial("upstream_unreachable", f"the provider did not answer ({_told(error)})") from None
        finally:
            self._counting -= Counter((key_id,))  # which forgets keys that count nothing

    async def _answer(self, request: web.Request, call: OpenCall, outgoing: Outgoing) -> web.StreamResponse:
        try:
            upstream = await self.ask(outgoing)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            await call.end_unused("failed", "connect")
            raise Denial("upstream_unreachable", f"the provider cannot be reached ({_told(error)})") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # The request may have arrived: nobody knows what was done with it.
            call.is_upstream_cut = True
            kind = "timeout" if isinstance(error, TimeoutError) else "cut_before_answer"
            call.error_kind = "translator" if call.is_translated else kind
            await call.end_metered()
            kind = "upstream_timeout" if isinstance(error, TimeoutError) else "upstream_cut"
            raise Denial(kind, f"the provider did not answer ({_told(error)})") from None
        async with upstream:
            if call.is_translated:
                return await self._relay_translated(request, call, outgoing, upstream)
            call.http_status = upstream.status
            if upstream.status != 200:
                return await self._relay_error(call, outgoing, upstream)
            call.meter.is_stream = upstream.content_type == "text/event-stream"
            if call.meter.is_stream or "content-length" not in upstream.headers:
                return await self._relay_stream(request, call, outgoing, upstream)
            return await self._relay_whole(request, call, upstream)

    async def _relay_translated(
        self, request: web.Request, call: OpenCall, outgoing: Outgoing, upstream: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """What the translator made. An error of the provider's is told in the client's own protocol."""
        if upstream.status == 200:
            return await self._relay_stream(request, call, outgoing, upstream)
        told = await read_up_to(upstream, MAX_ERROR_BYTES)
        error = call.upstream_error
        if call.may_be_billed:
            await call.end_metered()
            raise Denial("upstream_cut", "the provider's answer could not be translated")
        if error is None:
            await call.end_unused("failed", "untranslatable")
            raise Denial("no_pair", f"this request cannot be translated: {told.decode(errors='replace')}")
        await call.end_unused(error.end, error.failure.kind)
        if error.failure.is_ours:
            raise access_refused()
        body = error_body(PROTOCOL_OF[outgoing.dialect], error.status, error.message)
        return web.json_response(body, status=error.status, headers=error.headers)

    async def _relay_error(
        self, call: OpenCall, outgoing: Outgoing, upstream: aiohttp.ClientResponse
    ) -> web.Response:
        """The provider's own error, but for one about our access. It did nothing, so it costs nothing."""
        body = await read_error(upstream)
        failure = failure_of(upstream.status, body)
        await call.end_unused("refused_upstream", failure.kind)
        if failure.is_ours:
            log.error("provider refuses our access", provider=call.row.provider, error_kind=failure.kind)
            raise access_refused()
        if upstream.status < 400:
            raise Denial("upstream_unreachable", f"the provider answered with status {upstream.status}")
        headers = outgoing.without_key_headers(response_headers(upstream.headers))
        return web.Response(status=upstream.status, body=outgoing.without_key(body), headers=headers)

    async def _relay_whole(
        self, request: web.Request, call: OpenCall, upstream: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """A document of known length is booked before it is passed on, so the next call finds it booked."""
        try:
            body = await read_up_to(upstream, MAX_WHOLE_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            call.is_upstream_cut, call.error_kind = True, "cut"
            await call.end_metered()
            raise Denial("upstream_cut", f"the provider's answer broke off ({_told(error)})") from None
        call.note_first_byte()
        call.meter.feed(body)
        call.is_client_gone = _is_gone(request)
        await call.end_metered()
        return web.Response(status=200, body=body, headers=response_headers(upstream.headers))

    async def _relay_stream(
        self,
        request: web.Request,
        call: OpenCall,
        outgoing: Outgoing,
        upstream: aiohttp.ClientResponse,
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=200, headers=response_headers(upstream.headers))
        usage_filter = UsageChunkFilter() if outgoing.hides_usage else None
        await _send_head(request, call, response)
        with IdleWatch(READ_TIMEOUT_SEC, upstream.close) as watch:
            try:
                await _relay_chunks(Relay(request, call, response, usage_filter, watch), upstream)
                if call.is_client_gone:
                    await self._drain(call, upstream, watch)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                is_late = watch.is_expired or isinstance(error, TimeoutError)
                call.is_upstream_cut = True
                call.error_kind = call.error_kind or ("timeout" if is_late else "cut")
        if usage_filter is not None and not call.is_client_gone and (rest := usage_filter.end()):
            await _send(request, call, response, rest)
        await call.end_metered()
        if call.is_upstream_cut or call.is_client_gone:
            _break_off(request, call)
        else:
            await response.write_eof()
        return response

    async def _drain(self, call: OpenCall, upstream: aiohttp.ClientResponse, watch: IdleWatch) -> None:
        """Read on without a client. Raises as reading does; `TimeoutError` after `DRAIN_SEC`."""
        if self._n_drains >= MAX_DRAINS:
            raise TimeoutError
        self._n_drains += 1
        try:
            async with asyncio.timeout(DRAIN_SEC):
                async for chunk in upstream.content.iter_any():
                    watch.touch()
                    call.see(chunk)
        finally:
            self._n_drains -= 1

    def _session(self, socket: Path | None) -> aiohttp.ClientSession:
        session = self._sessions.get(socket)
        if session is None:
            connector = (
                aiohttp.TCPConnector(limit=0)
                if socket is None
                else aiohttp.UnixConnector(path=str(socket), limit=0)
            )
            session = self._sessions[socket] = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    connect=CONNECT_TIMEOUT_SEC,
                    sock_connect=CONNECT_TIMEOUT_SEC,
                ),
            )
        return session


@dataclass(frozen=True)
class Relay:
    """One stream on its way to a client."""

    request: web.Request
    call: OpenCall
    response: web.StreamResponse
    usage_filter: UsageChunkFilter | None
    watch: IdleWatch


async def _relay_chunks(relay: Relay, upstream: aiohttp.ClientResponse) -> None:
    """Until the upstream ends or the client is gone. Raises as reading from upstream does."""
    call, usage_filter, watch = relay.call, relay.usage_filter, relay.watch
    async for chunk in upstream.content.iter_any():
        watch.touch()
        call.see(chunk)
        shown = chunk if usage_filter is None else usage_filter.feed(chunk)
        if shown:
            await _send(relay.request, call, relay.response, shown)
        if call.is_client_gone:
            return


async def _send_head(request: web.Request, call: OpenCall, response: web.StreamResponse) -> None:
    try:
        await response.prepare(request)
    except OSError:
        call.is_client_gone = True


async def _send(request: web.Request, call: OpenCall, response: web.StreamResponse, chunk: bytes) -> None:
    """To the client, whose going away is no failure of the call."""
    try:
        if _is_slow(request):
            async with asyncio.timeout(WRITE_TIMEOUT_SEC):
                await response.write(chunk)
        else:
            await response.write(chunk)
    except (OSError, TimeoutError):
        call.is_client_gone = True


async def read_up_to(upstream: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole body. Raises `ClientPayloadError` for a longer one, and as reading does."""
    body = bytearray()
    with IdleWatch(READ_TIMEOUT_SEC, upstream.close) as watch:
        async for chunk in upstream.content.iter_any():
            watch.touch()
            body += chunk
            if len(body) > limit:
                raise aiohttp.ClientPayloadError("the answer is too long")
    return bytes(body)


async def read_error(upstream: aiohttp.ClientResponse) -> bytes:
    """An error's body; nothing when that cannot be had, for it is an error all the same."""
    try:
        return await read_up_to(upstream, MAX_ERROR_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError):
        return b""


def access_refused() -> Denial:
    """Of a provider that refuses our key or our account: no word of it is for the box."""
    return Denial("upstream_auth", "the gateway's own access to the provider was refused")


def _break_off(request: web.Request, call: OpenCall) -> None:
    """A cut must not look like a clean end, else harnesses take half an answer for a whole one."""
    if request.transport is None:
        return
    if call.is_client_gone or request.version < HttpVersion11:
        request.transport.abort()
    else:
        # What was relayed still arrives; the mark of a whole body does not.
        request.transport.close()


def _is_slow(request: web.Request) -> bool:
    """Whether the client has yet to read what it was sent: only then may a write wait."""
    return request.transport is not None and request.transport.get_write_buffer_size() > 0


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


def _told(error: BaseException) -> str:
    """Its kind: an error's own words may hold addresses and headers."""
    return type(error).__name__
