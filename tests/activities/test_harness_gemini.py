"""gemini: its settings and its command."""

from __future__ import annotations

import json

from activities.harnesses.gemini import GeminiHarness, model_on_wire
from tests.activities.harness_runs import KEY, context_of, written_by

SERVERS = """
[[environment.mcp_servers]]
name = "notes"
transport = "stdio"
command = "notes-server"
args = ["--read-only"]

[[environment.mcp_servers]]
name = "docs"
url = "http://docs.invalid/sse"

[[environment.mcp_servers]]
name = "search"
transport = "http"
url = "http://search.invalid/mcp"
headers = { X-Team = "a" }
"""


async def test_the_settings_are_these() -> None:
    box = await written_by(GeminiHarness(), context_of("gemini", model="gemini-3.5-flash", toml=SERVERS))
    assert box.modes == {"/root/.gemini/settings.json": 0o600}
    on_wire = "gemini-3.5-flas%68"
    assert json.loads(box.files["/root/.gemini/settings.json"]) == {
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "maxAttempts": 10,
            "retryFetchErrors": True,
        },
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "tools": {
            "exclude": ["google_web_search", "web_fetch"],
            "shell": {"enableInteractiveShell": False},
        },
        "modelConfigs": {
            "customAliases": {"edit-corrector": {"extends": "base", "modelConfig": {"model": on_wire}}},
            "customOverrides": [
                *(
                    {"match": {"overrideScope": scope}, "modelConfig": {"model": on_wire}}
                    for scope in ("core", "codebase_investigator", "generalist", "cli_help")
                ),
                {
                    "match": {"model": on_wire},
                    "modelConfig": {"generateContentConfig": {"thinkingConfig": {"thinkingLevel": "HIGH"}}},
                },
            ],
        },
        "mcpServers": {
            "notes": {"command": "notes-server", "args": ["--read-only"], "trust": True},
            "docs": {"url": "http://docs.invalid/sse", "trust": True},
            "search": {
                "httpUrl": "http://search.invalid/mcp",
                "headers": {"X-Team": "a"},
                "trust": True,
            },
        },
    }


def test_the_command_holds_no_secret_and_the_instruction_comes_by_stdin() -> None:
    launch = GeminiHarness().launch(context_of("gemini", model="scripted/hello"))
    assert launch.argv == (
        "/opt/evolve/bin/gemini",
        "-o",
        "stream-json",
        "--approval-mode",
        "yolo",
        "--skip-trust",
        "-m",
        "scripted/hello",
    )
    assert launch.env == {
        "HOME": "/root",
        "GEMINI_API_KEY": KEY,
        "GOOGLE_GEMINI_BASE_URL": "http://gateway.invalid:1",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    }
    assert launch.stdin == b"Create hello.txt."


def test_a_model_is_named_so_that_the_cli_knows_no_other_for_it() -> None:
    assert model_on_wire("gemini-3.5-flash") == "gemini-3.5-flas%68"
    assert model_on_wire("gemini-3.1-pro-preview") == "gemini-3.1-pro-previe%77"
    assert model_on_wire("scripted/hello") == "scripted/hello"
