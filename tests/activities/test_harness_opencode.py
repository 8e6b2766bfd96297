"""opencode: its settings and its command."""

from __future__ import annotations

import json
from typing import Any

from activities.harnesses.opencode import OpencodeHarness
from tests.activities.harness_runs import KEY, context_of, written_by

SERVERS = """
[environment]
network_mode = "no-network"

[[environment.mcp_servers]]
name = "notes"
transport = "stdio"
command = "notes-server"
args = ["--read-only"]

[[environment.mcp_servers]]
name = "docs"
url = "http://localhost:8000/sse"
"""
OPTIONS = {"baseURL": "http://gateway.invalid:1/v1", "apiKey": "{env:EVOLVE_GATEWAY_API_KEY}"}


async def settings(**of: Any) -> dict[str, Any]:
    box = await written_by(OpencodeHarness(), context_of("opencode", **of))
    assert box.modes == {"/root/.config/opencode/opencode.json": 0o600}
    return json.loads(box.files["/root/.config/opencode/opencode.json"])


async def test_a_model_of_openrouter_keeps_its_name_in_the_catalogue() -> None:
    assert await settings(model="openrouter/anthropic/claude-opus-5.5", effort="high") == {
        "autoupdate": False,
        "share": "disabled",
        "model": "openrouter/anthropic/claude-opus-5.5",
        "small_model": "openrouter/anthropic/claude-opus-5.5",
        "enabled_providers": ["openrouter"],
        "permission": {"*": "allow", "websearch": "deny"},
        "provider": {
            "openrouter": {
                "options": OPTIONS,
                "models": {
                    "anthropic/claude-opus-5.5": {
                        "id": "openrouter/anthropic/claude-opus-5.5",
                        "reasoning": True,
                        "tool_call": True,
                        "options": {"reasoning": {"effort": "high"}},
                    }
                },
            }
        },
        "mcp": {},
    }


async def test_any_other_model_is_a_provider_of_our_own() -> None:
    told = await settings(model="fireworks/deepseek-v4.1-flash", effort="max")
    assert told["model"] == told["small_model"] == "gateway/fireworks/deepseek-v4.1-flash"
    assert told["enabled_providers"] == ["gateway"]
    assert told["provider"] == {
        "gateway": {
            "npm": "@ai-sdk/openai-compatible",
            "options": OPTIONS,
            "models": {
                "fireworks/deepseek-v4.1-flash": {
                    "id": "fireworks/deepseek-v4.1-flash",
                    "reasoning": True,
                    "tool_call": True,
                    "limit": {"context": 200_000, "output": 32_000},
                    "options": {"reasoningEffort": "max"},
                }
            },
        }
    }


async def test_off_asks_for_no_reasoning() -> None:
    told = await settings(model="openrouter/anthropic/claude-haiku-4.5", effort="off")
    assert told["provider"]["openrouter"]["models"]["anthropic/claude-haiku-4.5"]["options"] == {}


async def test_servers_and_a_box_without_network() -> None:
    told = await settings(toml=SERVERS)
    assert told["permission"] == {"*": "allow", "websearch": "deny", "webfetch": "deny"}
    assert told["mcp"] == {
        "notes": {"type": "local", "command": ["notes-server", "--read-only"], "enabled": True},
        "docs": {"type": "remote", "url": "http://localhost:8000/sse", "enabled": True},
    }


def test_the_command_holds_no_secret_and_the_instruction_comes_by_stdin() -> None:
    launch = OpencodeHarness().launch(context_of("opencode", home="/home/dev"))
    assert launch.argv == (
        "/opt/evolve/bin/opencode",
        "run",
        "--format",
        "json",
        "--thinking",
        "--title",
        "trial",
    )
    assert launch.env == {
        "HOME": "/home/dev",
        "XDG_CONFIG_HOME": "/home/dev/.config",
        "XDG_DATA_HOME": "/home/dev/.local/share",
        "XDG_STATE_HOME": "/home/dev/.local/state",
        "XDG_CACHE_HOME": "/home/dev/.cache",
        "EVOLVE_GATEWAY_API_KEY": KEY,
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "npm_config_offline": "true",
    }
    assert launch.stdin == b"Create hello.txt."
