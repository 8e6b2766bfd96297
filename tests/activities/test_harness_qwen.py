"""qwen: its settings and its command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from activities.harnesses.qwen import QwenHarness
from tests.activities.harness_runs import KEY, context_of, written_by

OFFLINE = '[environment]\nnetwork_mode = "no-network"\n'


async def settings(**of: Any) -> dict[str, Any]:
    box = await written_by(QwenHarness(), context_of("qwen", **of))
    assert box.modes == {"/root/.qwen/settings.json": 0o600}
    return json.loads(box.files["/root/.qwen/settings.json"])


async def test_the_settings_are_these() -> None:
    assert await settings(model="qwen3.8-max", effort="thinking") == {
        "$version": 4,
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
        "security": {"auth": {"selectedType": "openai"}},
        "tools": {"exclude": ["ask_user_question", "tool_search"]},
        "model": {
            "name": "qwen3.8-max",
            "generationConfig": {
                "maxRetries": 3,
                "timeout": 600_000,
                "extra_body": {"enable_thinking": True},
            },
        },
        "mcpServers": {},
    }


@pytest.mark.parametrize(
    ("effort", "is_thinking"), [("off", False), ("minimal", False), ("medium", True), ("thinking", True)]
)
async def test_an_effort_is_thinking_or_not(effort: str, is_thinking: bool) -> None:
    generation = (await settings(effort=effort))["model"]["generationConfig"]
    assert generation["extra_body"] == {"enable_thinking": is_thinking}


async def test_a_box_without_network_is_offered_no_fetching() -> None:
    assert "web_fetch" in (await settings(toml=OFFLINE))["tools"]["exclude"]


async def test_a_tasks_skills_are_copied_where_it_looks_for_them() -> None:
    toml = '[environment]\nskills_dir = "/opt/skills"\n'
    box = await written_by(QwenHarness(), context_of("qwen", toml=toml, home="/home/dev"))
    assert any({"/opt/skills", "/home/dev/.qwen/skills"} <= set(each) for each in box.commands)


def test_the_command_holds_no_secret_and_the_instruction_comes_by_stdin() -> None:
    launch = QwenHarness().launch(context_of("qwen", model="qwen3.8-max"))
    assert launch.argv == ("/opt/evolve/bin/qwen", "--auth-type", "openai", "-o", "stream-json", "-y")
    assert launch.env == {
        "HOME": "/root",
        "OPENAI_API_KEY": KEY,
        "OPENAI_BASE_URL": "http://gateway.invalid:1/v1",
        "OPENAI_MODEL": "qwen3.8-max",
    }
    assert launch.stdin == b"Create hello.txt."
