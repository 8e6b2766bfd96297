"""`claude`: Claude Code, on the Anthropic Messages protocol."""

from __future__ import annotations

import json
from typing import Any

from activities.harnesses.base import Bundle, HarnessContext, HomeRules, Launch, SessionCopy, bundle_program
from activities.harnesses.claude_session import session_lines, session_path
from activities.harnesses.home import copy_skills, real_path, write_private, write_session
from activities.harnesses.mcp_servers import kinded_servers
from activities.harnesses.presets import (
    NO_INTERNET,
    PINNED_CONTEXT,
    PINNED_CONTEXT_TOKENS,
    is_web_off,
    merged,
    own_config,
)
from activities.harnesses.seeds import read_seed, seed_id
from activities.sandboxes.base import Box

PACKAGE = "@anthropic-ai/claude-code-linux-x64"
WEB_TOOLS = ("WebSearch", "WebFetch")
MAX_RETRIES = 5
SETTINGS = ".claude/settings.json"
MCP_FILE = ".claude/evolve-mcp.json"
_SILENCE = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
}
# Aliases of the CLI itself, of its subagents and of its side calls: the key is good for one model only.
_MODEL_SLOTS = (
    *("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"),
    *(f"ANTHROPIC_DEFAULT_{each}_MODEL" for each in ("FABLE", "OPUS", "SONNET", "HAIKU")),
)


class ClaudeHarness:
    """Claude Code by its native program."""

    name = "claude"
    stdout_file = "claude-code.txt"
    package: str | None = PACKAGE
    tested_version: str | None = "2.1.197"
    parser_name: str | None = "claude"
    home_rules = HomeRules(
        captured=(".claude", ".claude.json"),
        excluded=(".claude/.credentials.json", ".claude/shell-snapshots/*", ".claude/statsig/*"),
        session_copies=(SessionCopy(".claude/projects", "sessions/projects"),),
    )

    def bundle(self, version: str) -> Bundle | None:
        """One package with one program."""
        return Bundle(self.name, version, (f"{PACKAGE}@{version}",), f"node_modules/{PACKAGE}/claude")

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Settings, MCP servers, the task's skills, and the conversation to go on with."""
        home, user = context.home, context.user
        if settings := _settings(context):
            await write_private(box, f"{home}/{SETTINGS}", json.dumps(settings), user)
        if context.task.mcp_servers:
            servers = kinded_servers(context.task.mcp_servers, "type")
            await write_private(box, f"{home}/{MCP_FILE}", json.dumps({"mcpServers": servers}), user)
        await copy_skills(box, context.task.skills_dir, f"{home}/.claude/skills", user)
        if context.task.has_trajectory:
            await _write_session(box, context)

    def launch(self, context: HarnessContext) -> Launch | None:
        """The instruction goes in by stdin."""
        access = context.model_access
        argv = [bundle_program(context), "-p", "--output-format", "stream-json", "--verbose"]
        argv += ["--dangerously-skip-permissions", "--model", access.model]
        if access.effort:
            argv += ["--effort", access.effort]
        if is_web_off(context):
            argv += ["--disallowedTools", ",".join(WEB_TOOLS)]
        if context.task.mcp_servers:
            argv += ["--mcp-config", f"{context.home}/{MCP_FILE}", "--strict-mcp-config"]
        if context.task.has_trajectory:
            argv += ["--resume", seed_id(context.task.name)]
        return Launch(tuple(argv), _env(context), context.instruction.encode())


def _env(context: HarnessContext) -> dict[str, str]:
    access = context.model_access
    env = {
        "HOME": context.home,
        "ANTHROPIC_BASE_URL": access.base_url,
        "ANTHROPIC_API_KEY": access.api_key,
        **dict.fromkeys(_MODEL_SLOTS, access.model),
        **_SILENCE,
        "CLAUDE_CODE_MAX_RETRIES": str(MAX_RETRIES),
        # Without it the CLI refuses to run as root with permissions skipped.
        "IS_SANDBOX": "1",
    }
    if context.arm.preset == PINNED_CONTEXT:
        env["CLAUDE_CODE_DISABLE_1M_CONTEXT"] = "1"
        env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(PINNED_CONTEXT_TOKENS)
    return env


def _settings(context: HarnessContext) -> dict[str, Any]:
    """The user's own, and a preset over them."""
    settings = own_config(context)
    if context.arm.preset == NO_INTERNET:
        return merged(settings, {"permissions": {"deny": [*_denied(settings), *WEB_TOOLS]}})
    if context.arm.preset == PINNED_CONTEXT:
        return merged(settings, {"autoCompactWindow": PINNED_CONTEXT_TOKENS})
    return settings


def _denied(settings: dict[str, Any]) -> list[Any]:
    permissions = settings.get("permissions")
    return list(permissions.get("deny") or ()) if isinstance(permissions, dict) else []


async def _write_session(box: Box, context: HarnessContext) -> None:
    workdir = await real_path(box, context.workdir)
    session_id = seed_id(context.task.name)
    turns = read_seed(context.task_dir / context.task.seed_path)
    model = context.model_access.model
    lines = session_lines(turns, session_id, workdir, context.version or "", model)
    await write_session(box, session_path(context.home, workdir, session_id), lines, context.user)
