"""droid: its settings and its command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.harnesses.droid import DroidHarness, wire_of
from domain.rosters import ROSTERS
from tests.activities.harness_runs import KEY, context_of, written_by

SERVERS = """
[[environment.mcp_servers]]
name = "notes"
transport = "stdio"
command = "notes-server"

[[environment.mcp_servers]]
name = "docs"
url = "http://docs.invalid/sse"
"""


async def model(**of: Any) -> dict[str, Any]:
    box = await written_by(DroidHarness(), context_of("droid", **of))
    assert box.modes == {"/root/.factory/settings.json": 0o600}
    (only,) = json.loads(box.files["/root/.factory/settings.json"])["customModels"]
    return only


async def test_a_vendors_model_is_told_by_its_name_alone() -> None:
    assert await model(model="claude-opus-5-5", effort="high") == {
        "id": "custom:gateway",
        "displayName": "claude-opus-5-5",
        "model": "claude-opus-5-5",
        "provider": "anthropic",
        "baseUrl": "http://gateway.invalid:1",
        "apiKey": "${EVOLVE_GATEWAY_API_KEY}",
    }


@pytest.mark.parametrize(
    ("name", "provider", "path"),
    [
        ("claude-fable-5-1", "anthropic", ""),
        ("gpt-5.6-terra", "openai", "/v1"),
        ("gemini-3.8-flash", "generic-chat-completion-api", "/v1"),
        ("qwen3.8-max", "generic-chat-completion-api", "/v1"),
        ("kimi-k3", "generic-chat-completion-api", "/v1"),
        ("glm-5.3", "generic-chat-completion-api", "/v1"),
        ("openrouter/deepseek/deepseek-v4.1-flash", "generic-chat-completion-api", "/v1"),
        ("fireworks/deepseek-v4.1-flash", "generic-chat-completion-api", "/v1"),
        ("scripted/hello", "anthropic", ""),
        ("ours/some-model", "generic-chat-completion-api", "/v1"),
    ],
)
def test_it_speaks_what_the_models_provider_speaks(name: str, provider: str, path: str) -> None:
    wire = wire_of(name)
    assert (wire.provider, wire.path) == (provider, path)


def test_every_model_of_its_roster_has_a_wire() -> None:
    wires = {wire_of(each.alias).provider for each in ROSTERS["droid"].models}
    assert wires == {"anthropic", "openai", "generic-chat-completion-api"}


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("fireworks/deepseek-v4.1-flash", {"reasoning_effort": "high"}),
        ("scripted/hello", {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
    ],
)
async def test_a_name_that_it_does_not_know_has_its_effort_in_the_body(
    name: str, extra: dict[str, Any]
) -> None:
    assert (await model(model=name, effort="high"))["extraArgs"] == extra
    assert "extraArgs" not in await model(model=name)


async def test_servers_are_in_a_file_of_their_own() -> None:
    box = await written_by(DroidHarness(), context_of("droid", toml=SERVERS))
    assert json.loads(box.files["/root/.factory/mcp.json"]) == {
        "mcpServers": {
            "notes": {"type": "stdio", "command": "notes-server", "args": []},
            "docs": {"type": "sse", "url": "http://docs.invalid/sse"},
        }
    }


def test_the_command_holds_no_secret_and_the_instruction_comes_by_stdin() -> None:
    launch = DroidHarness().launch(context_of("droid", model="claude-opus-5-5", effort="max"))
    assert launch.argv == (
        "/opt/evolve/bin/droid",
        "exec",
        "--skip-permissions-unsafe",
        "-o",
        "stream-json",
        "-m",
        "custom:gateway",
        "-r",
        "max",
    )
    assert launch.env == {
        "HOME": "/root",
        "FACTORY_AIRGAP_ENABLED": "true",
        "EVOLVE_GATEWAY_API_KEY": KEY,
    }
    assert launch.stdin == b"Create hello.txt."
