"""`codex`: Codex CLI, on the OpenAI Responses protocol."""

from __future__ import annotations

from typing import Any

from activities.harnesses.base import Bundle, HarnessContext, HomeRules, Launch, SessionCopy, bundle_program
from activities.harnesses.codex_session import rollout_lines, rollout_path
from activities.harnesses.home import copy_skills, real_path, write_private, write_session
from activities.harnesses.presets import (
    PINNED_CONTEXT,
    PINNED_CONTEXT_TOKENS,
    is_web_off,
    merged,
    own_config,
)
from activities.harnesses.seeds import read_seed, seed_id
from activities.harnesses.toml_text import toml_text
from activities.sandboxes.base import Box
from domain.task_config import McpServerConfig

PACKAGE = "@openai/codex"
PROGRAM = f"node_modules/{PACKAGE}/vendor/x86_64-unknown-linux-musl/bin/codex"
PROVIDER = "evolve"
KEY_VARIABLE = "EVOLVE_GATEWAY_API_KEY"
REQUEST_RETRIES = 5
# It sends a refused call (402) again this often too, within some 2 s; 0 would lose a run to one cut stream.
STREAM_RETRIES = 3


class CodexHarness:
    """Codex by its native program, which needs no C library."""

    name = "codex"
    stdout_file = "codex.txt"
    package: str | None = PACKAGE
    tested_version: str | None = "0.171.0"
    parser_name: str | None = "codex"
    home_rules = HomeRules(
        captured=(".codex",),
        excluded=(
            *(".codex/auth.json", ".codex/skills/.system/*", ".codex/*.sqlite*", ".codex/cache/*"),
            *(".codex/tmp/*", ".codex/shell_snapshots/*", ".codex/thread-writer-locks/*"),
        ),
        session_copies=(SessionCopy(".codex/sessions", "sessions"),),
    )

    def bundle(self, version: str) -> Bundle | None:
        """The platform's build is a version of its own."""
        omit = (f"node_modules/{PACKAGE}/vendor/*/codex-resources/voice/*",)
        return Bundle(self.name, version, (f"{PACKAGE}@{version}-linux-x64",), PROGRAM, omit=omit)

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Settings with MCP servers, the task's skills, and the conversation to go on with."""
        home, user = context.home, context.user
        await write_private(box, f"{home}/.codex/config.toml", toml_text(_config(context)), user)
        await copy_skills(box, context.task.skills_dir, f"{home}/.codex/skills", user)
        if context.task.has_trajectory:
            await _write_rollout(box, context)

    def launch(self, context: HarnessContext) -> Launch | None:
        """The instruction goes in by stdin."""
        argv = [bundle_program(context), "exec", "--json", "--skip-git-repo-check"]
        argv += ["--dangerously-bypass-approvals-and-sandbox"]
        if context.task.has_trajectory:
            argv += ["resume", seed_id(context.task.name)]
        env = {
            "HOME": context.home,
            "CODEX_HOME": f"{context.home}/.codex",
            KEY_VARIABLE: context.model_access.api_key,
        }
        return Launch((*argv, "-"), env, context.instruction.encode())


def _config(context: HarnessContext) -> dict[str, Any]:
    """The user's own, the platform's over them, a preset over both."""
    access = context.model_access
    platform: dict[str, Any] = {
        "model": access.model,
        "model_provider": PROVIDER,
        "model_reasoning_effort": access.effort,
        "check_for_update_on_startup": False,
        "analytics": {"enabled": False},
        "feedback": {"enabled": False},
        "features": {"plugins": False, "apps": False},
        "model_providers": {
            PROVIDER: {
                "name": PROVIDER,
                "base_url": f"{access.base_url}/v1",
                "env_key": KEY_VARIABLE,
                "wire_api": "responses",
                "request_max_retries": REQUEST_RETRIES,
                "stream_max_retries": STREAM_RETRIES,
            }
        },
    }
    servers = {server.name: _mcp_server(server, context) for server in context.task.mcp_servers}
    if servers:
        platform["mcp_servers"] = servers
    if is_web_off(context):
        platform["web_search"] = "disabled"
    if context.arm.preset == PINNED_CONTEXT:
        platform["model_context_window"] = PINNED_CONTEXT_TOKENS
    return merged(own_config(context), platform)


def _mcp_server(server: McpServerConfig, context: HarnessContext) -> dict[str, Any]:
    """It hands down no environment but what is named: a task's servers have the task's."""
    if server.transport == "stdio":
        return {"command": server.command, "args": list(server.args), "env_vars": sorted(context.task.env)}
    return {"url": server.url, "http_headers": server.headers}


async def _write_rollout(box: Box, context: HarnessContext) -> None:
    workdir = await real_path(box, context.workdir)
    session_id = seed_id(context.task.name)
    turns = read_seed(context.task_dir / context.task.seed_path)
    lines = rollout_lines(turns, session_id, workdir, context.version or "", PROVIDER)
    await write_session(box, rollout_path(context.home, turns, session_id), lines, context.user)
