"""Which headers and query parameters go through, and where a key is presented. All else stays outside."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from gateway.upstreams import Upstream

_REQUEST = frozenset(
    (
        "accept",
        "anthropic-version",
        "anthropic-beta",
        "openai-beta",
        "session_id",
        "conversation_id",
        "originator",
        "user-agent",
        "x-app",
        "x-goog-api-client",
    )
)
_REQUEST_PREFIXES = ("x-stainless-",)
_RESPONSE = frozenset(
    (
        "content-type",
        "content-encoding",
        "cache-control",
        "retry-after",
        "retry-after-ms",
        "x-should-retry",
        "request-id",
        "x-request-id",
        "openai-processing-ms",
        "openai-version",
    )
)
_RESPONSE_PREFIXES = ("x-ratelimit-", "anthropic-ratelimit-")
# A field mask would hide the usage; a key belongs to us.
_QUERY = ("alt", "beta")
_MAX_KEY_CHARS = 200


def presented_key(request: web.Request) -> str:
    """The key as any of the protocols presents it; empty when none does."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    named = request.headers.get("x-api-key") or request.headers.get("x-goog-api-key")
    return (named or bearer or request.query.get("key", ""))[:_MAX_KEY_CHARS]


def request_headers(
    headers: CIMultiDictProxy[str], upstream: Upstream, auth: Mapping[str, str]
) -> CIMultiDict[str]:
    """Those that go upstream, with our key instead of the box's."""
    kept = CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() in _REQUEST or name.lower().startswith(_REQUEST_PREFIXES)
    )
    kept["accept-encoding"] = "identity"
    # The body was read as UTF-8 JSON: no other charset or form of it may be what the provider reads.
    kept["content-type"] = "application/json"
    if upstream.name == "anthropic":
        kept.setdefault("anthropic-version", "2023-06-01")
    kept.update(auth)
    return kept


def response_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Those that come back."""
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() in _RESPONSE or name.lower().startswith(_RESPONSE_PREFIXES)
    )


def anthropic_betas(headers: CIMultiDictProxy[str]) -> str:
    """All that are asked for: the header may stand several times, and each goes upstream."""
    return ",".join(headers.getall("anthropic-beta", []))


def upstream_query(request: web.Request) -> dict[str, str]:
    """The parameters that go upstream."""
    return {name: request.query[name] for name in _QUERY if name in request.query}
