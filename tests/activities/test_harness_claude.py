"""What `claude` is given: its files, its command, its environment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.harnesses.base import HarnessContext
from activities.harnesses.claude import ClaudeHarness
from activities.harnesses.claude_session import session_lines, session_path
from activities.harnesses.presets import merged
from activities.harnesses.seeds import read_seed, seed_id
from domain.errors import TaskError
from domain.task_steps import SEED_FILE
from tests.activities.harness_runs import KEY, context_of, written_by

HARNESS = ClaudeHarness()
SEED: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "agent": {"name": "other", "version": "1"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {
            "step_id": 2,
            "source": "user",
            "message": "The word is BANANA.",
            "timestamp": "2026-01-02T03:04:05Z",
        },
        {
            "step_id": 3,
            "source": "agent",
            "message": [{"type": "text", "text": "I look."}, {"type": "image", "source": {}}],
            "reasoning_content": "hm",
            "tool_calls": [
                {"tool_call_id": "a b", "function_name": "shell tool", "arguments": {"cmd": "ls"}},
                {"tool_call_id": "c", "function_name": "shell tool", "arguments": {"cmd": "true"}},
            ],
            "observation": {"results": [{"source_call_id": "a b", "content": "file.txt"}]},
        },
        {"step_id": 4, "source": "agent", "message": "Noted."},
    ],
}


def context(preset: str | None = None, config: dict[str, Any] | None = None, **other: Any) -> HarnessContext:
    made = context_of("claude", **other)
    kwargs = None if config is None else {"config": config}
    return replace(made, arm=made.arm.model_copy(update={"preset": preset, "kwargs": kwargs}))


def option(argv: tuple[str, ...], name: str) -> str | None:
    return argv[argv.index(name) + 1] if name in argv else None


def test_the_key_is_in_the_environment_alone_and_every_model_slot_is_the_arms() -> None:
    launch = HARNESS.launch(context(effort="high", model="claude-opus-5-5", home="/home/worker"))
    assert launch is not None
    assert launch.argv[:2] == ("/opt/evolve/bin/claude", "-p")
    assert (option(launch.argv, "--model"), option(launch.argv, "--effort")) == ("claude-opus-5-5", "high")
    assert launch.stdin == b"Create hello.txt."
    assert KEY not in " ".join(launch.argv)
    assert (launch.env["ANTHROPIC_API_KEY"], launch.env["HOME"]) == (KEY, "/home/worker")
    models = {value for name, value in launch.env.items() if "MODEL" in name}
    assert models == {"claude-opus-5-5"}
    assert launch.env["IS_SANDBOX"] == "1"
    assert int(launch.env["CLAUDE_CODE_MAX_RETRIES"]) >= 3


@pytest.mark.parametrize(
    ("preset", "toml", "is_off"),
    [
        (None, "", False),
        ("no-internet", "", True),
        ("pinned-context", "", False),
        (None, '[environment]\nnetwork_mode = "no-network"\n', True),
        (None, '[agent]\nnetwork_mode = "no-network"\n', True),
    ],
)
def test_the_vendors_web_tools_are_off_where_the_agent_has_no_internet(
    preset: str | None, toml: str, is_off: bool
) -> None:
    launch = HARNESS.launch(context(preset, toml=toml))
    assert launch is not None
    assert option(launch.argv, "--disallowedTools") == ("WebSearch,WebFetch" if is_off else None)


async def test_settings_are_the_users_with_a_preset_over_them() -> None:
    own = {"includeCoAuthoredBy": False, "autoCompactWindow": 1_000_000, "permissions": {"deny": ["Read(x)"]}}
    for preset, expected in (
        (None, own),
        ("no-internet", merged(own, {"permissions": {"deny": ["Read(x)", "WebSearch", "WebFetch"]}})),
        ("pinned-context", merged(own, {"autoCompactWindow": 200_000})),
    ):
        box = await written_by(HARNESS, context(preset, own))
        assert json.loads(box.files["/root/.claude/settings.json"]) == expected
        assert set(box.modes.values()) == {0o600}
    pinned = HARNESS.launch(context("pinned-context", own))
    assert pinned is not None
    assert pinned.env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "200000"
    assert pinned.env["CLAUDE_CODE_DISABLE_1M_CONTEXT"] == "1"


async def test_mcp_servers_of_each_transport() -> None:
    toml = """
    [[environment.mcp_servers]]
    name = "a"
    transport = "stdio"
    command = "serve"
    args = ["x"]
    [[environment.mcp_servers]]
    name = "b"
    url = "http://b:1/sse"
    [[environment.mcp_servers]]
    name = "c"
    transport = "http"
    url = "http://c:1"
    headers = { X-A = "1" }
    """
    made = context(toml=toml)
    box = await written_by(HARNESS, made)
    path = "/root/.claude/evolve-mcp.json"
    assert json.loads(box.files[path])["mcpServers"] == {
        "a": {"type": "stdio", "command": "serve", "args": ["x"]},
        "b": {"type": "sse", "url": "http://b:1/sse"},
        "c": {"type": "http", "url": "http://c:1", "headers": {"X-A": "1"}},
    }
    launch = HARNESS.launch(made)
    assert launch is not None
    assert option(launch.argv, "--mcp-config") == path


def write_seed(folder: Path, document: Any = SEED) -> Path:
    (folder / "trajectory.json").write_text(json.dumps(document))
    return folder


def test_a_trajectory_is_a_session_that_the_cli_goes_on_with(tmp_path: Path) -> None:
    turns = read_seed(write_seed(tmp_path) / SEED_FILE)
    lines = session_lines(turns, seed_id("hello"), "/app", "2.1.197", "m")
    entries = [json.loads(line) for line in lines.splitlines()]
    assert [entry["parentUuid"] for entry in entries] == [None, *(entry["uuid"] for entry in entries[:-1])]
    assert entries[0]["timestamp"] == "2026-01-02T03:04:05.000Z"
    said = [(entry["type"], entry["message"]["content"]) for entry in entries]
    assert said == [
        ("user", "The word is BANANA."),
        (
            "assistant",
            [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "call_seed_2_0", "name": "shell_tool", "input": {"cmd": "ls"}},
                {"type": "tool_use", "id": "call_seed_2_1", "name": "shell_tool", "input": {"cmd": "true"}},
            ],
        ),
        (
            "user",
            [
                {"type": "tool_result", "tool_use_id": "call_seed_2_0", "content": "file.txt"},
                {"type": "tool_result", "tool_use_id": "call_seed_2_1", "content": "(no output)"},
            ],
        ),
        ("assistant", [{"type": "text", "text": "Noted."}]),
    ]
    assert session_path("/root", "/work/my_dir.x", "S") == "/root/.claude/projects/-work-my-dir-x/S.jsonl"


@pytest.mark.parametrize("document", [[], {"steps": 3}, {"steps": []}, {"steps": [{"message": "x"}]}])
def test_what_is_no_trajectory_is_refused_by_the_files_name(tmp_path: Path, document: Any) -> None:
    with pytest.raises(TaskError, match=r"trajectory\.json"):
        read_seed(write_seed(tmp_path, document) / SEED_FILE)


def test_what_an_agent_saw_without_a_call_is_told_by_the_user(tmp_path: Path) -> None:
    steps = [{"source": "agent", "message": "ls", "observation": {"results": [{"content": "file.txt"}]}}]
    turns = read_seed(write_seed(tmp_path, {"steps": steps}) / SEED_FILE)
    assert [(turn.is_agent, turn.text) for turn in turns] == [(True, "ls"), (False, "file.txt")]
