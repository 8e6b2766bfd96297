"""What a model name means."""

from __future__ import annotations

import pytest

from domain.models import MODEL_PROVIDERS, WIRE_PROTOCOLS, ModelRoute, route_of
from domain.rosters import ROSTERS


@pytest.mark.parametrize(
    ("name", "provider", "upstream_model", "name_in_box"),
    [
        ("opus", "anthropic", "claude-opus-5-5", "claude-opus-5-5"),
        ("claude-fable-5.1", "anthropic", "claude-fable-5-1", "claude-fable-5-1"),
        ("gpt-6.1-sol", "openai", "gpt-6.1-sol", "gpt-6.1-sol"),
        ("gemini-3.5-flash", "gemini", "gemini-3.5-flash", "gemini-3.5-flash"),
        ("qwen3.8-max", "dashscope", "qwen3.8-max", "qwen3.8-max"),
        ("kimi-k3", "moonshot", "kimi-k3", "kimi-k3"),
        ("moonshot/kimi-k3", "moonshot", "kimi-k3", "kimi-k3"),
        ("glm-5.3-flash", "zai", "glm-5.3-flash", "glm-5.3-flash"),
        (
            "openrouter/z-ai/glm-5.3",
            "openrouter",
            "z-ai/glm-5.3",
            "openrouter/z-ai/glm-5.3",
        ),
        (
            "fireworks/deepseek-v4.1-flash",
            "fireworks",
            "accounts/fireworks/models/deepseek-v4p1-flash",
            "fireworks/deepseek-v4.1-flash",
        ),
        ("scripted/hello", "scripted", "hello", "scripted/hello"),
        ("lab/llama-4:q8", "lab", "llama-4:q8", "lab/llama-4:q8"),
    ],
)
def test_a_name_has_one_provider_and_one_id_there(
    name: str, provider: str, upstream_model: str, name_in_box: str
):
    route = route_of(name, upstreams={"lab"})
    assert route is not None
    assert route == ModelRoute(name, provider, upstream_model)
    assert route.name_in_box == name_in_box


@pytest.mark.parametrize(
    "name", ["", "llama-4", "nobody/llama-4", "gpt-6 astra", "openrouter/", "openrouter/../x", "a" * 300]
)
def test_a_name_that_nobody_is_known_to_serve_has_no_route(name: str):
    assert route_of(name) is None


def test_every_model_of_a_runnable_roster_has_a_route_by_alias_and_by_id():
    for roster in ROSTERS.values():
        for model in roster.models if roster.is_runnable else ():
            routes = [route_of(name) for name in (model.alias, model.model_id)]
            assert all(route is not None and route.provider in MODEL_PROVIDERS for route in routes), model
            assert len({(route.provider, route.upstream_model) for route in routes if route}) == 1, model


def test_every_provider_speaks_a_protocol_that_is_known():
    assert all(provider.protocols for provider in MODEL_PROVIDERS.values())
    assert {protocol for provider in MODEL_PROVIDERS.values() for protocol in provider.protocols} == set(
        WIRE_PROTOCOLS
    )
