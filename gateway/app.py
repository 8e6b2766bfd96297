"""The door: who is asking, what for, and to whom that goes."""

from __future__ import annotations

from dataclasses import dataclass, field

import structlog
from aiohttp import web

from gateway.admission import Target, admissible, granted_model, name_model
from gateway.bodies import BodyReader
from gateway.bounds import estimate_tokens
from gateway.calls import OpenCall, new_call, unserved_call
from gateway.catalog import Catalog
from gateway.denials import Denial
from gateway.forward import Forwarder, Outgoing
from gateway.headers import anthropic_betas, presented_key, request_headers, upstream_query
from gateway.json_text import BadJson, JsonObject
from gateway.ledger import Ledger
from gateway.meter import Meter
from gateway.models_list import list_models, one_model
from gateway.native_errors import Protocol
from gateway.policy import apply_policy
from gateway.protocols import Wanted, protocol_of, wanted
from gateway.translation import InnerCall, Translation
from store.keys import GrantedModel, KeyGrant

log = structlog.get_logger()

MAX_BODY_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Gateway:
    """The parts that answer a request."""

    ledger: Ledger
    catalog: Catalog
    forwarder: Forwarder
    translation: Translation
    bodies: BodyReader = field(default_factory=BodyReader)

    async def runner(self, shutdown_timeout_sec: float) -> web.AppRunner:
        """Set up, without a site. Its handlers outlive their clients: they read on what is billed anyway."""
        runner = web.AppRunner(
            self._app(),
            access_log=None,
            handler_cancellation=False,
            shutdown_timeout=shutdown_timeout_sec,
        )
        await runner.setup()
        return runner

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", _answer_health)
        app.router.add_get("/", _answer_root)  # claude asks for it before its first call
        app.router.add_route("*", "/{path:.*}", self.answer)
        return app

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Any request of a protocol; a refusal is in that protocol's shape."""
        protocol: Protocol = protocol_of(request.path, request.headers) or "openai"
        try:
            return await self._answer(request)
        except Denial as denial:
            log.info("refused", protocol=protocol, path=request.path, reason=denial.kind)
            return denial.response(protocol)
        except web.HTTPRequestEntityTooLarge:
            return Denial("too_large", f"a request has at most {MAX_BODY_BYTES} bytes").response(protocol)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = wanted(request.method, request.raw_path, request.headers)
        find = self.ledger.find_for_call if asked.action == "call" else self.ledger.find
        grant = await find(presented_key(request))
        if asked.action == "models":
            return web.json_response(list_models(asked.protocol, grant))
        if asked.action == "model":
            return web.json_response(one_model(asked.protocol, grant, asked.model or ""))
        if asked.action == "count":
            return await self._count(request, asked, grant, *await self._read(request, asked, grant))
        await self.ledger.pacer.enter(grant)
        try:
            return await self._call(request, asked, grant, *await self._read(request, asked, grant))
        except Denial as denial:
            self.ledger.pacer.note(grant, denial)
            raise

    async def _read(
        self, request: web.Request, asked: Wanted, grant: KeyGrant
    ) -> tuple[GrantedModel, JsonObject]:
        """The model that is asked for, and the body. Raises `Denial`."""
        try:
            body = JsonObject.of_bytes(await self.bodies.read(request, grant.key_id))
        except BadJson as error:
            raise Denial("invalid", str(error)) from None
        return granted_model(grant, asked, body), body

    async def _call(
        self, request: web.Request, asked: Wanted, grant: KeyGrant, model: GrantedModel, body: JsonObject
    ) -> web.StreamResponse:
        target, key = await self._target(grant, asked, model)
        upstream = target.upstream
        admitted = admissible(asked, target, body, anthropic_betas(request.headers))
        row = new_call(self.ledger, grant, asked.dialect, target, admitted)
        await self.ledger.reserve(row, len(admitted.body))
        dialect = "chat" if admitted.is_translated else asked.dialect
        outgoing = Outgoing(
            url=upstream.url(dialect, model.upstream_model, asked.verb),
            query={} if admitted.is_translated else upstream_query(request),
            headers=request_headers(request.headers, upstream, upstream.auth_headers(key)),
            body=admitted.body,
            dialect=dialect,
            socket=upstream.socket,
            provider_key=key,
            hides_usage=admitted.hides_usage,
        )
        call = OpenCall(self.ledger, row, grant, target.price, admitted.service, Meter(dialect))
        if not admitted.is_translated:
            return await self.forwarder.answer(request, call, outgoing)
        call.is_translated = True
        inner = InnerCall(call, asked.dialect, outgoing, admitted.max_output, upstream.max_tokens_name)
        return await self.translation.answer(request, inner, admitted.body)

    async def _target(self, grant: KeyGrant, asked: Wanted, model: GrantedModel) -> tuple[Target, str | None]:
        """Where a call goes, with its provider's key. Raises `Denial`, with a row where the platform lacks
        what every call of the model needs."""
        upstream = self.catalog.upstream(model)
        try:
            target = Target(model, upstream, await self.catalog.price(model))
            return target, await self.catalog.provider_key(upstream, grant)
        except Denial as denial:
            if denial.refusal_kind is not None:
                row = unserved_call(self.ledger, grant, asked.dialect, model)
                await self.ledger.refuse(row, denial.refusal_kind)
            raise

    async def _count(
        self, request: web.Request, asked: Wanted, grant: KeyGrant, model: GrantedModel, body: JsonObject
    ) -> web.Response:
        """Free where the provider counts; elsewhere an estimate, the same each time."""
        upstream = self.catalog.upstreams.get(model.provider)
        if upstream is None or not upstream.counts_tokens:
            n_tokens = estimate_tokens(body.n_chars)
            name = "totalTokens" if asked.protocol == "gemini" else "input_tokens"
            return web.json_response({name: n_tokens})
        apply_policy(asked.dialect, body)
        name_model(asked.dialect, model, body)
        key = await self.catalog.provider_key(upstream, grant)
        return await self.forwarder.count(
            Outgoing(
                url=upstream.count_url(asked.dialect, model.upstream_model),
                query=upstream_query(request),
                headers=request_headers(request.headers, upstream, upstream.auth_headers(key)),
                body=body.encode(),
                dialect=asked.dialect,
                socket=upstream.socket,
                provider_key=key,
            ),
            grant.key_id,
        )


async def _answer_health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _answer_root(_request: web.Request) -> web.Response:
    return web.Response(text="evolve gateway\n")
