"""What `codex` is given: its files, its command, its environment."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from activities.harnesses.base import HarnessContext
from activities.harnesses.codex import CodexHarness
from activities.harnesses.codex_session import rollout_lines, rollout_path
from activities.harnesses.seeds import read_seed
from activities.harnesses.toml_text import toml_text
from domain.task_steps import SEED_FILE
from tests.activities.harness_runs import KEY, context_of, written_by
from tests.activities.test_harness_claude import write_seed

HARNESS = CodexHarness()


def context(preset: str | None = None, config: dict[str, Any] | None = None, **other: Any) -> HarnessContext:
    made = context_of("codex", **other)
    kwargs = None if config is None else {"config": config}
    return replace(made, arm=made.arm.model_copy(update={"preset": preset, "kwargs": kwargs}))


async def config_of(made: HarnessContext) -> dict[str, Any]:
    box = await written_by(HARNESS, made)
    assert box.modes == {f"{made.home}/.codex/config.toml": 0o600}
    return tomllib.loads(box.files[f"{made.home}/.codex/config.toml"])


def test_the_key_is_in_the_environment_alone() -> None:
    launch = HARNESS.launch(context(home="/home/worker"))
    assert launch is not None
    assert launch.argv == (
        *("/opt/evolve/bin/codex", "exec", "--json", "--skip-git-repo-check"),
        *("--dangerously-bypass-approvals-and-sandbox", "-"),
    )
    assert launch.env == {
        "HOME": "/home/worker",
        "CODEX_HOME": "/home/worker/.codex",
        "EVOLVE_GATEWAY_API_KEY": KEY,
    }
    assert launch.stdin == b"Create hello.txt."


async def test_the_platforms_settings_are_stamped_over_the_users() -> None:
    own = {
        "model_verbosity": "low",
        "features": {"plugins": True, "x": True},
        "mcp_servers": {"mine": {"command": "m"}},
        "web_search": "live",
        "model_context_window": 900_000,
    }
    config = await config_of(context(config=own, effort="xhigh", model="gpt-6.1-sol"))
    assert (config["model"], config["model_reasoning_effort"]) == ("gpt-6.1-sol", "xhigh")
    assert (config["model_verbosity"], config["web_search"]) == ("low", "live")
    assert config["features"] == {"plugins": False, "apps": False, "x": True}
    assert config["mcp_servers"] == {"mine": {"command": "m"}}
    provider = config["model_providers"][config["model_provider"]]
    assert (provider["base_url"], provider["env_key"]) == (
        "http://gateway.invalid:1/v1",
        "EVOLVE_GATEWAY_API_KEY",
    )
    assert min(provider["request_max_retries"], provider["stream_max_retries"]) >= 3


@pytest.mark.parametrize(
    ("preset", "toml", "search", "window"),
    [
        (None, "", "live", 900_000),
        ("no-internet", "", "disabled", 900_000),
        ("pinned-context", "", "live", 200_000),
        (None, '[environment]\nnetwork_mode = "no-network"\n', "disabled", 900_000),
    ],
)
async def test_a_preset_wins_over_the_user(preset: str | None, toml: str, search: str, window: int) -> None:
    own = {"web_search": "live", "model_context_window": 900_000}
    config = await config_of(context(preset, own, toml=toml))
    assert (config["web_search"], config["model_context_window"]) == (search, window)


async def test_a_tasks_mcp_servers_have_the_tasks_environment() -> None:
    toml = """
    [environment.env]
    FOO = "1"
    [[environment.mcp_servers]]
    name = "a b"
    transport = "stdio"
    command = "serve"
    args = ["x"]
    [[environment.mcp_servers]]
    name = "c"
    transport = "http"
    url = "http://c:1"
    headers = { X-A = "1" }
    """
    config = await config_of(context(toml=toml))
    assert config["mcp_servers"] == {
        "a b": {"command": "serve", "args": ["x"], "env_vars": ["FOO"]},
        "c": {"url": "http://c:1", "http_headers": {"X-A": "1"}},
    }


def test_a_trajectory_is_a_rollout_that_the_cli_goes_on_with(tmp_path: Path) -> None:
    turns = read_seed(write_seed(tmp_path) / SEED_FILE)
    lines = [json.loads(line) for line in rollout_lines(turns, "S", "/app", "0.1", "evolve").splitlines()]
    assert [line["type"] for line in lines] == ["session_meta", *["response_item"] * 7]
    assert [line["payload"].get("call_id") for line in lines[3:7]] == [
        *("call_seed_2_0", "call_seed_2_1", "call_seed_2_0", "call_seed_2_1"),
    ]
    assert json.loads(lines[3]["payload"]["arguments"]) == {"cmd": "ls"}
    assert rollout_path("/root", turns, "S") == (
        "/root/.codex/sessions/2026/01/02/rollout-2026-01-02T03-04-05-S.jsonl"
    )


def test_any_text_and_table_is_toml() -> None:
    table = {
        "plain": 'quote " back \\ line\n tab\t null\x00 del\x7f ü 😀',
        "with space": {"a.b": [1, 2.5, True, {"c": "d"}], "none": None, "empty": {}},
        "none": None,
    }
    read = tomllib.loads(toml_text(table))
    assert read == {
        "plain": table["plain"],
        "with space": {"a.b": [1, 2.5, True, {"c": "d"}], "empty": {}},
    }
