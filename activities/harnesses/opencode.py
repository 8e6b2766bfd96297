"""OpenCode (`opencode`): speaks Chat Completions, to OpenRouter in OpenRouter's own dialect.

Measured with 1.18.33:
- A refusal with 402 ends it at once, exit code 1 and an `error` line. What breaks, before an answer or in
  its middle, is tried again six times in about 70 s without a word, 429 and 5xx alike; no setting for it.
- The catalogue that it carries knows most of the roster's models by OpenRouter's names: their windows, and
  what they can read. So a model of OpenRouter keeps its name there, and only `id`, which goes out, is the
  one that the key is good for. `reasoning` goes out as OpenRouter has it, with the prompt cached.
- Any other model is a provider of our own, whose effort goes out as `reasoning_effort`.
- It asks the npm registry for a package of its plugins in the background unless npm is set offline, and a
  model for a title unless it is given one.
"""

from __future__ import annotations

from typing import Any

from activities.harnesses.base import (
    Bundle,
    HarnessContext,
    HomeRules,
    Launch,
    ModelAccess,
    SessionCopy,
    bundle_program,
)
from activities.harnesses.home import put_settings
from activities.harnesses.mcp_servers import local_or_remote_servers
from activities.sandboxes.base import Box

KEY_VARIABLE = "EVOLVE_GATEWAY_API_KEY"
OPENROUTER = "openrouter"
OWN = "gateway"
"""What a provider that opencode does not know is called in its settings."""
# A model's that is not in its catalogue; without a window it would never make a long chat short.
CONTEXT_TOKENS = 200_000
MAX_OUTPUT_TOKENS = 32_000
TITLE = "trial"
_PROGRAM = "opencode-linux-x64"
_SILENCE = {
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
    "npm_config_offline": "true",
}


class OpencodeHarness:
    """OpenCode."""

    name = "opencode"
    stdout_file = "opencode.txt"
    package = "opencode-ai"
    tested_version = "1.18.33"
    parser_name = "opencode"
    home_rules = HomeRules(
        captured=(".config/opencode", ".local/share/opencode", ".local/state/opencode"),
        excluded=(".config/opencode/node_modules/*", ".local/share/opencode/bin/*"),
        session_copies=(
            SessionCopy(".local/share/opencode", "opencode/xdg-data/opencode"),
            SessionCopy(".local/state/opencode", "opencode/xdg-state/opencode"),
        ),
    )

    def bundle(self, version: str) -> Bundle:
        """The program itself: the package that is named after it only finds and links this one."""
        return Bundle(
            harness=self.name,
            version=version,
            packages=(f"{_PROGRAM}@{version}",),
            entry=f"node_modules/{_PROGRAM}/bin/opencode",
        )

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Settings and skills; the key is in the environment only."""
        await put_settings(box, context, ".config/opencode", {"opencode.json": settings_of(context)})

    def launch(self, context: HarnessContext) -> Launch:
        """The instruction comes by stdin. XDG folders that an image sets would lead away from its home."""
        argv = (bundle_program(context), "run", "--format", "json", "--thinking", "--title", TITLE)
        env = {
            "HOME": context.home,
            "XDG_CONFIG_HOME": f"{context.home}/.config",
            "XDG_DATA_HOME": f"{context.home}/.local/share",
            "XDG_STATE_HOME": f"{context.home}/.local/state",
            "XDG_CACHE_HOME": f"{context.home}/.cache",
            KEY_VARIABLE: context.model_access.api_key,
            **_SILENCE,
        }
        return Launch(argv, env, context.instruction.encode())


def settings_of(context: HarnessContext) -> dict[str, Any]:
    """`~/.config/opencode/opencode.json`."""
    provider, model, declared = _provider(context.model_access)
    return {
        "autoupdate": False,
        "share": "disabled",
        "model": f"{provider}/{model}",
        "small_model": f"{provider}/{model}",
        "enabled_providers": [provider],
        "permission": _permission(context),
        "provider": {provider: declared},
        "mcp": local_or_remote_servers(context.task.mcp_servers),
    }


def _permission(context: HarnessContext) -> dict[str, str]:
    """Everything but its web search, which is a server on the internet, and fetching where there is no
    network."""
    is_offline = context.task.agent_network.mode == "no-network"
    return {"*": "allow", "websearch": "deny", **({"webfetch": "deny"} if is_offline else {})}


def _provider(access: ModelAccess) -> tuple[str, str, dict[str, Any]]:
    """The provider's name, the model's name there, and what is declared of both."""
    options = {"baseURL": f"{access.base_url}/v1", "apiKey": f"{{env:{KEY_VARIABLE}}}"}
    start, _, rest = access.model.partition("/")
    model = {"id": access.model, "reasoning": True, "tool_call": True}
    effort = None if access.effort == "off" else access.effort
    if start == OPENROUTER:
        model["options"] = {"reasoning": {"effort": effort}} if effort else {}
        return OPENROUTER, rest, {"options": options, "models": {rest: model}}
    model["limit"] = {"context": CONTEXT_TOKENS, "output": MAX_OUTPUT_TOKENS}
    model["options"] = {"reasoningEffort": effort} if effort else {}
    declared = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {access.model: model}}
    return OWN, access.model, declared
