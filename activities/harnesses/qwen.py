"""Qwen Code (`qwen`), a fork of Gemini CLI: speaks Chat Completions.

Measured with 0.15.10:
- A refusal with 402 ends it at once, with exit code 0 and a result that says success: only the text
  `[API Error: 402 …]` and the gateway's record tell.
- `maxRetries` counts in two of its three nested loops: how often its HTTP client sends a call again, and
  how often it waits one to four minutes after a 429. Without it a provider that goes on answering 429 is
  asked for hours; with 3 it gives up after about a quarter of an hour. A 5xx is asked 28 times in about two
  minutes. A connection that breaks before an answer is tried again, an answer that breaks off is not.
- Its managed memory makes a model call of its own when the agent is done: off.
- Settings of a `$version` older than its own (4) are written anew at the start, with a copy beside them.
- It puts a space before the `@` of `me@example.com` in what it is asked, by stdin and by JSON alike.
"""

from __future__ import annotations

from typing import Any

from activities.harnesses.base import (
    Bundle,
    HarnessContext,
    HomeRules,
    Launch,
    SessionCopy,
    bundle_program,
)
from activities.harnesses.home import put_settings
from activities.harnesses.mcp_servers import trusted_servers
from activities.harnesses.node import NODE_VERSION
from activities.sandboxes.base import Box

MAX_RETRIES = 3
# Of the first byte: a relay may hold a call for a minute, and models think for longer than its 2 minutes.
CALL_TIMEOUT_MS = 600_000
# Nobody is there to be asked, and with its search gone every MCP tool is offered at once.
LEFT_OUT_TOOLS = ("ask_user_question", "tool_search")
IS_THINKING = {"off": False, "minimal": False, "medium": True, "thinking": True}
"""The two states of DashScope's `enable_thinking`, by effort (contract §9: `binary`)."""


class QwenHarness:
    """Alibaba's Qwen Code."""

    name = "qwen"
    stdout_file = "qwen-code.txt"
    package = "@qwen-code/qwen-code"
    tested_version = "0.15.10"
    parser_name = "qwen"
    home_rules = HomeRules(
        captured=(".qwen",),
        excluded=(".qwen/settings.json.orig",),
        session_copies=(SessionCopy(".qwen/projects", "qwen-sessions"),),
    )

    def bundle(self, version: str) -> Bundle:
        """One package without dependencies; the optional native ones are not needed."""
        return Bundle(
            harness=self.name,
            version=version,
            packages=(f"{self.package}@{version}",),
            entry=f"node_modules/{self.package}/cli.js",
            node=NODE_VERSION,
        )

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Settings and skills; the key is in the environment only."""
        await put_settings(box, context, ".qwen", {"settings.json": settings_of(context)})

    def launch(self, context: HarnessContext) -> Launch:
        """The instruction comes by stdin."""
        access = context.model_access
        argv = (bundle_program(context), "--auth-type", "openai", "-o", "stream-json", "-y")
        env = {
            "HOME": context.home,
            "OPENAI_API_KEY": access.api_key,
            "OPENAI_BASE_URL": f"{access.base_url}/v1",
            "OPENAI_MODEL": access.model,
        }
        return Launch(argv, env, context.instruction.encode())


def settings_of(context: HarnessContext) -> dict[str, Any]:
    """`~/.qwen/settings.json`."""
    return {
        "$version": 4,
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "memory": {"enableManagedAutoMemory": False, "enableManagedAutoDream": False},
        "security": {"auth": {"selectedType": "openai"}},
        "tools": {"exclude": _left_out_tools(context)},
        "model": {"name": context.model_access.model, "generationConfig": _generation(context)},
        "mcpServers": trusted_servers(context.task.mcp_servers),
    }


def _left_out_tools(context: HarnessContext) -> list[str]:
    """`web_fetch` is the box's own request: of no use where the box has no network."""
    is_offline = context.task.agent_network.mode == "no-network"
    return [*LEFT_OUT_TOOLS, *(("web_fetch",) if is_offline else ())]


def _generation(context: HarnessContext) -> dict[str, Any]:
    """How a call is made. Raises `KeyError` for an effort that qwen does not take."""
    limits = {"maxRetries": MAX_RETRIES, "timeout": CALL_TIMEOUT_MS}
    effort = context.model_access.effort
    return limits if effort is None else {**limits, "extra_body": {"enable_thinking": IS_THINKING[effort]}}
