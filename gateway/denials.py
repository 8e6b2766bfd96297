"""How the gateway says no: one kind of reason, told in the shape of each protocol."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from aiohttp import web

from gateway.native_errors import Protocol, error_body
from store.spend import RefusalKind

DenialKind = Literal[
    "invalid",
    "no_key",
    "no_model",
    "no_route",
    "no_price",
    "no_pair",
    "too_large",
    "upgrade",
    "own_cap",
    "user",
    "team",
    "other",
    "in_flight",
    "upstream_auth",
    "no_provider_key",
    "upstream_unreachable",
    "upstream_cut",
    "upstream_timeout",
    "unavailable",
]

REASON_HEADER = "x-evolve-reason"


@dataclass(frozen=True)
class _Form:
    """`is_final`: asking again would be answered alike, so clients that heed it are told not to."""

    status: int
    openai_code: str | None = None
    is_final: bool = False
    retry_after_sec: int | None = None


_INVALID = _Form(400, is_final=True)
# The one status on which every harness was seen to end at once (facts/harnesses.md, consequence 1).
_SPENT = _Form(402, "insufficient_quota", is_final=True)
_UPSTREAM = _Form(502)
# Of our making, and asking again changes nothing. After a 5xx most harnesses try on until their deadline;
# a 400 ends each of them at once (facts/harnesses.md). What it was is told by the row of the call.
_OURS = _INVALID

_FORMS: Mapping[DenialKind, _Form] = MappingProxyType(
    {
        "invalid": _INVALID,
        "no_key": _Form(401, "invalid_api_key", is_final=True),
        "no_model": _Form(404, "model_not_found", is_final=True),
        "no_route": _Form(404, "not_found", is_final=True),
        "no_price": _INVALID,
        "no_pair": _INVALID,
        "too_large": _Form(413, is_final=True),
        "upgrade": _Form(426),
        "own_cap": _SPENT,
        "user": _SPENT,
        "team": _SPENT,
        "other": _SPENT,
        "in_flight": _Form(429, "rate_limit_exceeded", retry_after_sec=1),
        "upstream_auth": _OURS,
        "no_provider_key": _OURS,
        "upstream_unreachable": _UPSTREAM,
        "upstream_cut": _UPSTREAM,
        "upstream_timeout": _Form(504),
        "unavailable": _Form(503, retry_after_sec=2),
    }
)
_OF_REFUSAL: Mapping[RefusalKind, DenialKind] = MappingProxyType(
    {
        "own_cap": "own_cap",
        "user": "user",
        "team": "team",
        "platform": "other",
        "in_flight": "in_flight",
        "key_dead": "no_key",
        "unpriced": "no_price",
        "no_provider_key": "no_provider_key",
    }
)
_REFUSAL_OF: Mapping[DenialKind, RefusalKind] = MappingProxyType(
    {denied: refusal for refusal, denied in _OF_REFUSAL.items()}
)


class Denial(Exception):
    """A request that is not, or was not, served; `kind` is also what `x-evolve-reason` says."""

    def __init__(self, kind: DenialKind, message: str) -> None:
        super().__init__(message)
        self.kind: DenialKind = kind
        self.message = message

    @classmethod
    def of_refusal(cls, kind: RefusalKind, message: str) -> Denial:
        """The ledger's refusal; a budget's message begins with whose it is, as the contract spells it."""
        denied = _OF_REFUSAL[kind]
        is_budget = denied in ("user", "team", "other")
        return cls(denied, f"{denied}: {message}" if is_budget else message)

    @property
    def refusal_kind(self) -> RefusalKind | None:
        """As the ledger calls it; None for what leaves no row."""
        return _REFUSAL_OF.get(self.kind)

    @property
    def status(self) -> int:
        return _FORMS[self.kind].status

    def body(self, protocol: Protocol) -> dict[str, Any]:
        """The error in the protocol's own shape."""
        form = _FORMS[self.kind]
        return error_body(protocol, form.status, self.message, form.openai_code)

    @property
    def headers(self) -> dict[str, str]:
        form = _FORMS[self.kind]
        headers = {REASON_HEADER: self.kind}
        if form.is_final:
            headers["x-should-retry"] = "false"
        if form.retry_after_sec is not None:
            headers["retry-after"] = str(form.retry_after_sec)
        if self.kind == "upgrade":
            headers["connection"] = "close"
        return headers

    def response(self, protocol: Protocol) -> web.Response:
        return web.Response(
            status=self.status,
            body=json.dumps(self.body(protocol)).encode(),
            content_type="application/json",
            headers=self.headers,
        )
