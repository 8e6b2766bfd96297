"""Gemini CLI (`gemini`): speaks the Gemini protocol and no other.

Measured with 0.61.0:
- A refusal with 402 ends it at once, exit code 146 (the status mod 256); 429, 5xx and connections that
  break before an answer are tried again up to `maxAttempts` times, 5 to 30 s apart. An answer that breaks
  off in its middle is not: `[API Error: terminated]`, exit code 1. No setting changes that; a stream made
  to end quietly there would be taken for a whole one.
- It knows of its vendor's newer models and asks those: `gemini-3.5-flash` goes out as `gemini-3.8-flash`.
  Its own small errands (compressing a chat, correcting an edit, finding loops) and its sub-agents ask
  further models by fixed names. `model_on_wire` and the overrides below keep all of them on the arm's.
- Both web tools have the vendor's servers search and fetch: that is billed beside the tokens, and goes
  around a task's network policy. They are left out.
"""

from __future__ import annotations

from typing import Any

from activities.harnesses.base import Bundle, HarnessContext, HomeRules, Launch, bundle_program
from activities.harnesses.home import put_settings
from activities.harnesses.mcp_servers import trusted_servers
from activities.harnesses.node import NODE_VERSION
from activities.sandboxes.base import Box

MAX_ATTEMPTS = 10
WEB_TOOLS = ("google_web_search", "web_fetch")
SUB_AGENTS = ("codebase_investigator", "generalist", "cli_help")


class GeminiHarness:
    """Google's Gemini CLI."""

    name = "gemini"
    stdout_file = "gemini-cli.txt"
    package = "@google/gemini-cli"
    tested_version = "0.61.0"
    parser_name = "gemini"
    home_rules = HomeRules(captured=(".gemini",))

    def bundle(self, version: str) -> Bundle:
        """The package holds all it imports; what else it names is optional and native, and not needed."""
        return Bundle(
            harness=self.name,
            version=version,
            packages=(f"{self.package}@{version}",),
            entry=f"node_modules/{self.package}/bundle/gemini.js",
            node=NODE_VERSION,
        )

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Settings and skills; the key is in the environment only."""
        await put_settings(box, context, ".gemini", {"settings.json": settings_of(context)})

    def launch(self, context: HarnessContext) -> Launch:
        """The instruction comes by stdin; nothing of it is taken for a command."""
        access = context.model_access
        argv = (bundle_program(context), "-o", "stream-json", "--approval-mode", "yolo", "--skip-trust")
        env = {
            "HOME": context.home,
            "GEMINI_API_KEY": access.api_key,
            "GOOGLE_GEMINI_BASE_URL": access.base_url,
            "GEMINI_CLI_NO_RELAUNCH": "true",
        }
        return Launch((*argv, "-m", model_on_wire(access.model)), env, context.instruction.encode())


def model_on_wire(model: str) -> str:
    """A Gemini model's name with its last character percent-encoded: the same name to whoever reads the
    URL, and none that the CLI has another model for."""
    return f"{model[:-1]}%{ord(model[-1]):02X}" if model.startswith("gemini-") else model


def settings_of(context: HarnessContext) -> dict[str, Any]:
    """`~/.gemini/settings.json`."""
    return {
        "general": {
            "enableAutoUpdate": False,
            "enableAutoUpdateNotification": False,
            "maxAttempts": MAX_ATTEMPTS,
            "retryFetchErrors": True,
        },
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "tools": {"exclude": list(WEB_TOOLS), "shell": {"enableInteractiveShell": False}},
        "modelConfigs": _model_configs(model_on_wire(context.model_access.model)),
        "mcpServers": trusted_servers(context.task.mcp_servers),
    }


def _model_configs(model: str) -> dict[str, Any]:
    """Every call asks `model`. What the CLI would set by a name that it knows is set here: how it thinks.

    `edit-corrector` would forbid thinking, which not every model allows.
    """
    scopes = [{"match": {"overrideScope": scope}, "modelConfig": {"model": model}} for scope in SUB_AGENTS]
    thinking = _thinking(model)
    chat = {"match": {"model": model}, "modelConfig": {"generateContentConfig": {"thinkingConfig": thinking}}}
    return {
        "customAliases": {"edit-corrector": {"extends": "base", "modelConfig": {"model": model}}},
        "customOverrides": [
            {"match": {"overrideScope": "core"}, "modelConfig": {"model": model}},
            *scopes,
            *([chat] if thinking else []),
        ],
    }


def _thinking(model: str) -> dict[str, Any]:
    """The CLI's own defaults by generation; none for a model that is not the vendor's."""
    if model.startswith("gemini-2.5"):
        return {"thinkingBudget": 8192}
    return {"thinkingLevel": "HIGH"} if model.startswith("gemini-") else {}
