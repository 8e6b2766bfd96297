"""Where calls go: one table of the known providers, and the operator's own OpenAI-compatible servers.

Which protocols a known provider speaks is `domain.models.MODEL_PROVIDERS`; here is under which URL, with
which header its key goes, and what must be known of it to bound a call's cost.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast
from urllib.parse import quote, urlsplit

from domain.errors import EvolveError
from domain.models import MODEL_PROVIDERS, SCRIPTED, WIRE_PROTOCOLS
from gateway.protocols import Dialect

AuthHeader = Literal["bearer", "x-api-key", "x-goog-api-key", "none"]

_OPENAI_PATHS: Mapping[Dialect, str] = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "embeddings": "/v1/embeddings",
    "gemini": "/v1beta/models",
}


class BadUpstreams(EvolveError):
    """`EVOLVE_UPSTREAMS` cannot be used; the message names the entry."""

    code = "invalid_settings"


@dataclass(frozen=True)
class Upstream:
    """A server of models. `paths` has a path for each dialect that it speaks.

    `max_tokens_name` is chat's member for the output limit where a request names none.
    `reasoning_beside_limit` are output tokens that it may bill beyond the limit that a request sets.
    `image_tokens` bounds one image; `socket` is its unix socket, when it has one.
    """

    name: str
    base_url: str
    paths: Mapping[Dialect, str]
    auth: AuthHeader = "bearer"
    max_tokens_name: str = "max_tokens"
    reasoning_beside_limit: int = 0
    image_tokens: int = 20_000
    socket: Path | None = None

    def speaks(self, dialect: Dialect) -> bool:
        return dialect in self.paths

    def url(self, dialect: Dialect, model: str, verb: str = "") -> str:
        """Of a call; Gemini names model and verb in the path."""
        url = f"{self.base_url}{self.paths[dialect]}"
        return f"{url}/{quote(model, safe='')}:{verb}" if dialect == "gemini" else url

    @property
    def counts_tokens(self) -> bool:
        """Whether it counts a prompt's tokens for nothing."""
        return self.name in ("anthropic", "gemini")

    def count_url(self, dialect: Dialect, model: str) -> str:
        if dialect == "gemini":
            return self.url(dialect, model, "countTokens")
        return f"{self.base_url}{self.paths[dialect]}/count_tokens"

    def auth_headers(self, key: str | None) -> dict[str, str]:
        if key is None or self.auth == "none":
            return {}
        if self.auth == "bearer":
            return {"authorization": f"Bearer {key}"}
        return {self.auth: key}


@dataclass(frozen=True)
class _Known:
    base_url: str
    paths: Mapping[Dialect, str] = field(default_factory=lambda: dict[Dialect, str]())
    auth: AuthHeader = "bearer"
    has_embeddings: bool = False
    max_tokens_name: str = "max_tokens"
    reasoning_beside_limit: int = 0
    image_tokens: int = 20_000


_KNOWN: Mapping[str, _Known] = MappingProxyType(
    {
        "anthropic": _Known("https://api.anthropic.com", auth="x-api-key", image_tokens=6_000),
        # An image of a small model is billed as up to 48,000 tokens (2,833 and 5,667 for each of 8 tiles).
        "openai": _Known(
            "https://api.openai.com",
            has_embeddings=True,
            max_tokens_name="max_completion_tokens",
            image_tokens=50_000,
        ),
        "gemini": _Known("https://generativelanguage.googleapis.com", auth="x-goog-api-key"),
        "openrouter": _Known("https://openrouter.ai/api", image_tokens=50_000),
        "fireworks": _Known("https://api.fireworks.ai/inference", has_embeddings=True),
        # Qwen's thinking has a budget of its own, which `max_tokens` does not bound.
        "dashscope": _Known(
            "https://dashscope-intl.aliyuncs.com",
            paths={
                "chat": "/compatible-mode/v1/chat/completions",
                "messages": "/apps/anthropic/v1/messages",
                "embeddings": "/compatible-mode/v1/embeddings",
            },
            has_embeddings=True,
            reasoning_beside_limit=81_920,
        ),
        "moonshot": _Known("https://api.moonshot.ai", paths={"messages": "/anthropic/v1/messages"}),
        "zai": _Known(
            "https://api.z.ai",
            paths={"chat": "/api/paas/v4/chat/completions", "messages": "/api/anthropic/v1/messages"},
        ),
    }
)
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}")
_MEMBERS = {"base_url", "speaks", "auth"}


def upstreams(declared: str, scripted_socket: Path | None = None) -> dict[str, Upstream]:
    """Every upstream by its name. `declared` is `EVOLVE_UPSTREAMS`. Raises `BadUpstreams`."""
    table = {name: _known(name, known) for name, known in _KNOWN.items()}
    for name, entry in _declarations(declared).items():
        table[name] = _declared(name, entry, table.get(name))
    if scripted_socket is not None:
        table[SCRIPTED] = Upstream(
            name=SCRIPTED,
            base_url="http://scripted",
            paths={dialect: _OPENAI_PATHS[dialect] for dialect in (*WIRE_PROTOCOLS, "embeddings")},
            auth="none",
            socket=scripted_socket,
        )
    return table


def _known(name: str, known: _Known) -> Upstream:
    dialects: list[Dialect] = [*MODEL_PROVIDERS[name].protocols]
    if known.has_embeddings:
        dialects.append("embeddings")
    return Upstream(
        name=name,
        base_url=known.base_url,
        paths={dialect: known.paths.get(dialect, _OPENAI_PATHS[dialect]) for dialect in dialects},
        auth=known.auth,
        max_tokens_name=known.max_tokens_name,
        reasoning_beside_limit=known.reasoning_beside_limit,
        image_tokens=known.image_tokens,
    )


def _declarations(declared: str) -> dict[str, Any]:
    if not declared.strip():
        return {}
    try:
        entries = json.loads(declared)
    except ValueError as error:
        raise BadUpstreams(f"EVOLVE_UPSTREAMS is no JSON: {error}") from None
    if not isinstance(entries, dict):
        raise BadUpstreams("EVOLVE_UPSTREAMS must be a JSON object of upstreams by name")
    return cast(dict[str, Any], entries)


def _declared(name: str, entry: Any, known: Upstream | None) -> Upstream:
    """A URL alone, or an object; of a known provider only the URL changes."""
    if _NAME.fullmatch(name) is None or name == SCRIPTED:
        raise BadUpstreams(f"EVOLVE_UPSTREAMS: {name!r} cannot be the name of an upstream")
    members = cast(dict[str, Any], entry) if isinstance(entry, dict) else {"base_url": entry}
    if unknown := set(members) - _MEMBERS:
        raise BadUpstreams(f"EVOLVE_UPSTREAMS.{name}: unknown {', '.join(sorted(unknown))}")
    base_url = _base_url(name, members.get("base_url"))
    if known is not None:
        if set(members) != {"base_url"}:
            raise BadUpstreams(f"EVOLVE_UPSTREAMS.{name}: of a known provider only base_url can be set")
        return replace(known, base_url=base_url)
    speaks = members.get("speaks", ["chat", "embeddings"])
    auth = members.get("auth", "bearer")
    if not isinstance(speaks, list) or not speaks or not set(cast(list[Any], speaks)) <= set(_OPENAI_PATHS):
        raise BadUpstreams(f"EVOLVE_UPSTREAMS.{name}.speaks: a list of {', '.join(_OPENAI_PATHS)}")
    if auth not in ("bearer", "x-api-key", "x-goog-api-key", "none"):
        raise BadUpstreams(f"EVOLVE_UPSTREAMS.{name}.auth: bearer, x-api-key, x-goog-api-key or none")
    dialects = cast(list[Dialect], speaks)
    return Upstream(name, base_url, {dialect: _OPENAI_PATHS[dialect] for dialect in dialects}, auth)


def _base_url(name: str, value: Any) -> str:
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
        raise BadUpstreams(f"EVOLVE_UPSTREAMS.{name}.base_url: an http or https URL")
    if parts.username or parts.password:
        raise BadUpstreams(f"EVOLVE_UPSTREAMS.{name}.base_url: a key goes to `evolve admin provider-key set`")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
