"""The model protocols that harnesses speak: which request asks for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from domain.models import WireProtocol
from gateway.denials import Denial
from gateway.native_errors import Protocol

Dialect = WireProtocol | Literal["embeddings"]
"""The shape of a metered call's body, answer and usage."""
Action = Literal["call", "count", "models", "model"]

PROTOCOL_OF: Mapping[Dialect, Protocol] = {
    "messages": "anthropic",
    "chat": "openai",
    "responses": "openai",
    "embeddings": "openai",
    "gemini": "gemini",
}
_POSTS: Mapping[str, tuple[Dialect, Action]] = {
    "/v1/chat/completions": ("chat", "call"),
    "/v1/responses": ("responses", "call"),
    "/v1/embeddings": ("embeddings", "call"),
    "/v1/messages": ("messages", "call"),
    "/v1/messages/count_tokens": ("messages", "count"),
}
_LISTS: Mapping[Protocol, Dialect] = {"anthropic": "messages", "openai": "chat", "gemini": "gemini"}
_GEMINI_ACTIONS: Mapping[str, Action] = {
    "generateContent": "call",
    "streamGenerateContent": "call",
    "countTokens": "count",
}


@dataclass(frozen=True)
class Wanted:
    """What a request asks for. `model` and `verb` are in the path for Gemini, and for one listed model."""

    protocol: Protocol
    dialect: Dialect
    action: Action
    model: str | None = None
    verb: str = ""


def protocol_of(path: str, headers: Mapping[str, str]) -> Protocol | None:
    """The protocol of a request, None for a path that none has. `/v1/models` is Anthropic's by its header."""
    if path.startswith("/v1/messages") or (path.startswith("/v1/models") and "anthropic-version" in headers):
        return "anthropic"
    if path.startswith(("/v1beta/", "/v1alpha/")):
        return "gemini"
    return "openai" if path.startswith("/v1/") else None


def wanted(method: str, raw_path: str, headers: Mapping[str, str]) -> Wanted:
    """What is asked for. Raises `Denial` for what no protocol has and for what we never serve."""
    path = raw_path.partition("?")[0]
    protocol = protocol_of(path, headers)
    if protocol is None:
        raise Denial("no_route", f"no route {method} {path}")
    if method == "GET":
        return _reading(protocol, path, headers)
    if method == "POST":
        if protocol == "gemini":
            return _gemini_call(path)
        if path in _POSTS:
            return Wanted(protocol, *_POSTS[path])
    raise Denial("no_route", f"no route {method} {path}")


def _reading(protocol: Protocol, path: str, headers: Mapping[str, str]) -> Wanted:
    version, _, rest = path.strip("/").partition("/")
    dialect = _LISTS[protocol]
    if rest == "models":
        return Wanted(protocol, dialect, "models")
    if rest.startswith("models/"):
        return Wanted(protocol, dialect, "model", unquote(rest.removeprefix("models/")))
    if path == "/v1/responses" and "upgrade" in headers.get("connection", "").lower():
        raise Denial("upgrade", "responses are served over HTTP, not over a websocket")
    if rest.startswith("responses/"):
        name = rest.removeprefix("responses/").partition("/")[0]
        raise Denial("no_route", f"Response with id '{unquote(name)}' not found: responses are not stored")
    raise Denial("no_route", f"no route GET /{version}/{rest}")


def _gemini_call(path: str) -> Wanted:
    _, _, rest = path.strip("/").partition("/")
    model, colon, verb = rest.removeprefix("models/").rpartition(":")
    action = _GEMINI_ACTIONS.get(verb)
    if not rest.startswith("models/") or not colon or action is None:
        raise Denial("no_route", f"no route POST {path}")
    return Wanted("gemini", "gemini", action, unquote(model), verb)
