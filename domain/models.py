"""What a model name means: whose it is, what its provider calls it, and the protocols spoken there.

Names are the rosters' (contract §9), plus two kinds that no roster lists: `scripted/<name>`, the offline
upstream, and `<upstream>/<model>`, an OpenAI-compatible server that the operator declared. The gateway
routes by this table; a name that it does not know is refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

WireProtocol = Literal["messages", "responses", "chat", "gemini"]
"""Anthropic Messages, OpenAI Responses, OpenAI Chat Completions, Gemini generateContent."""

WIRE_PROTOCOLS: tuple[WireProtocol, ...] = ("messages", "responses", "chat", "gemini")
SCRIPTED = "scripted"


@dataclass(frozen=True)
class ModelProvider:
    """Whom a call goes to. A call in one of `protocols` passes through as it is; the first is what any
    other is translated to. `is_reseller`: it serves several vendors' models under one account."""

    name: str
    protocols: tuple[WireProtocol, ...]
    is_reseller: bool = False


MODEL_PROVIDERS: Mapping[str, ModelProvider] = MappingProxyType(
    {
        provider.name: provider
        for provider in (
            ModelProvider("anthropic", ("messages",)),
            ModelProvider("openai", ("responses", "chat")),
            ModelProvider("gemini", ("gemini",)),
            ModelProvider("openrouter", ("chat", "messages", "responses"), is_reseller=True),
            ModelProvider("fireworks", ("chat", "messages", "responses"), is_reseller=True),
            ModelProvider("dashscope", ("chat", "messages")),
            ModelProvider("moonshot", ("chat", "messages")),
            ModelProvider("zai", ("chat", "messages")),
            ModelProvider(SCRIPTED, WIRE_PROTOCOLS, is_reseller=True),
        )
    }
)

# The harness `claude` has words of its own for the newest of each size.
_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "fable": "claude-fable-5-1",
        "opus": "claude-opus-5-5",
        "sonnet": "claude-sonnet-5-5",
        "haiku": "claude-haiku-4-5",
        "claude-fable-5.1": "claude-fable-5-1",
    }
)
# By how a bare name begins; vendors keep their families apart.
_FAMILIES: tuple[tuple[str, str], ...] = (
    ("claude-", "anthropic"),
    ("gpt-", "openai"),
    ("gemini-", "gemini"),
    ("qwen", "dashscope"),
    ("kimi-", "moonshot"),
    ("glm-", "zai"),
)
# A name reaches URLs, config files and command lines of the harnesses: these characters and no others.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:@-]|/(?=[A-Za-z0-9])){0,199}")
_VERSION_POINT = re.compile(r"(?<=\d)[.](?=\d)")


@dataclass(frozen=True)
class ModelRoute:
    """One model: `name` as an arm spells it, and whom it is asked from under which id."""

    name: str
    provider: str
    upstream_model: str

    @property
    def name_in_box(self) -> str:
        """What the harness calls it: the vendor's own id, by which a harness knows what the model can do;
        a reseller's or a declared upstream's under the arm's name, which cannot be mistaken."""
        provider = MODEL_PROVIDERS.get(self.provider)
        return self.name if provider is None or provider.is_reseller else self.upstream_model


def route_of(name: str, upstreams: Collection[str] = ()) -> ModelRoute | None:
    """The route of a model name, None for one that nobody is known to serve.

    `upstreams` are the names of the operator's own. Whether `scripted` may be used is the caller's to rule.
    """
    if _NAME.fullmatch(name) is None:
        return None
    prefix, slash, rest = name.partition("/")
    if not slash:
        return _bare(name)
    if prefix in upstreams:
        return ModelRoute(name, prefix, rest)
    if prefix not in MODEL_PROVIDERS:
        return None
    return ModelRoute(name, prefix, _fireworks_id(rest) if prefix == "fireworks" else rest)


def _bare(name: str) -> ModelRoute | None:
    model = _ALIASES.get(name, name)
    provider = next((provider for start, provider in _FAMILIES if model.startswith(start)), None)
    return None if provider is None else ModelRoute(name, provider, model)


def _fireworks_id(name: str) -> str:
    """Fireworks writes a version's point as `p` and names the owner: `accounts/fireworks/models/glm-5p3`."""
    if "/" in name:
        return name
    return "accounts/fireworks/models/" + _VERSION_POINT.sub("p", name)
