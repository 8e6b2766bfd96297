"""Which settings of a harness a job may make."""

from __future__ import annotations

from typing import Any

import pytest

from domain.errors import ApiError
from domain.harness_config import REFUSED_KEYS, refuse_config_keys
from domain.rosters import ROSTERS


@pytest.mark.parametrize(
    ("agent", "config", "keys"),
    [
        ("claude", {"env": {"ANTHROPIC_BASE_URL": "https://x"}}, ["env"]),
        ("claude", {"apiKeyHelper": "echo key", "model": "opus"}, ["apiKeyHelper", "model"]),
        ("claude", {"hooks": {"PreToolUse": [{"env": {}}]}}, ["hooks.PreToolUse[0].env"]),
        ("codex", {"model_provider": "mine", "model_providers": {}}, ["model_provider", "model_providers"]),
        ("codex", {"model_providers.mine.base_url": "https://x"}, ["model_providers.mine.base_url"]),
        ("codex", {"mcp_servers": {"a": {"command": "x", "env": {}}}}, ["mcp_servers.a.env"]),
        ("codex", {"shell_environment_policy": {"inherit": "all"}}, ["shell_environment_policy"]),
        ("codex", {"profiles": {"x": {"model": "gpt-5"}}}, ["profiles"]),
        ("codex", {"tools": {"x": {"baseUrl": "y"}}}, ["tools.x.baseUrl"]),
    ],
)
def test_money_routing_models_and_environment_are_not_a_jobs_to_set(
    agent: str, config: dict[str, Any], keys: list[str]
):
    with pytest.raises(ApiError) as caught:
        refuse_config_keys(agent, config, "agents[0].kwargs.config")
    error = caught.value
    assert (error.code, error.param) == ("agent_config_key_refused", f"agents[0].kwargs.config.{keys[0]}")
    assert error.details == {"keys": keys}


@pytest.mark.parametrize(
    ("agent", "config"),
    [
        ("claude", {}),
        ("claude", {"permissions": {"deny": ["WebFetch"]}, "includeCoAuthoredBy": False}),
        ("codex", {"model_reasoning_summary": "detailed", "features": {"web_search": False}}),
        ("codex", {"mcp_servers": {"a": {"command": "x", "args": ["env"]}}}),
    ],
)
def test_other_settings_are_the_jobs_own(agent: str, config: dict[str, Any]):
    refuse_config_keys(agent, config, "agents[0].kwargs.config")


def test_every_harness_that_takes_settings_has_its_keys_refused():
    assert set(REFUSED_KEYS) == {name for name, roster in ROSTERS.items() if roster.supports_config}
