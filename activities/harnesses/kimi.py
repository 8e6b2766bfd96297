"""Kimi Code (`kimi`): speaks Chat Completions, with Moonshot's own `thinking` member.

Measured with 2.1.0:
- A refusal with 402 ends it at once, exit code 1, the reason on stderr. What breaks, before an answer or in
  its middle, and 429 and 5xx are tried again: ten tries a step, 0.5 to 30 s apart.
- The instruction can only be an argument, and Linux takes none of 128 KiB: a long one is put into a file.
- Its settings come whole from the environment; an effort goes out as `thinking.effort`, and `thinking`
  alone is what it does without one. A reply may be 256 Ki tokens by default.
- A server's transport is told by `transport`; `type` is taken for HTTP whatever it says.
"""

from __future__ import annotations

from activities.harnesses.base import Bundle, HarnessContext, HomeRules, Launch, bundle_program
from activities.harnesses.home import put_settings, write_private
from activities.harnesses.mcp_servers import kinded_servers
from activities.harnesses.node import NODE_VERSION
from activities.sandboxes.base import Box

# Of two of its dependencies, and theirs, as 2.1.0 resolves them: its sockets, and a code to log in by.
IMPORTED_PACKAGES = ("ws@8.23.0", "qrcode@1.5.4", "dijkstrajs@1.0.3", "pngjs@5.0.0")
MAX_ATTEMPTS = 10
MAX_OUTPUT_TOKENS = 65_536
MAX_ARGUMENT_BYTES = 100_000
"""An instruction longer than this goes by a file; the limit of one argument is 131,072 with its end."""


class KimiHarness:
    """Moonshot's Kimi Code."""

    name = "kimi"
    stdout_file = "kimi-code.txt"
    package = "@moonshot-ai/kimi-code"
    tested_version = "2.1.0"
    parser_name = "kimi"
    home_rules = HomeRules(
        captured=(".kimi-code",),
        excluded=(".kimi-code/cache/*", ".kimi-code/device_id", ".kimi-code/sessions/.index-dirty/*"),
    )

    def bundle(self, version: str) -> Bundle:
        """The program is one file, and what it imports at its start; its web pages are left out."""
        return Bundle(
            harness=self.name,
            version=version,
            packages=(f"{self.package}@{version}", *IMPORTED_PACKAGES),
            entry=f"node_modules/{self.package}/dist/main.mjs",
            node=NODE_VERSION,
            omit=(f"node_modules/{self.package}/dist-web/*",),
        )

    async def install(self, box: Box, context: HarnessContext) -> None:
        """MCP servers, skills, and the instruction where it is too long for an argument."""
        servers = kinded_servers(context.task.mcp_servers, "transport")
        files = {"mcp.json": {"mcpServers": servers}} if servers else {}
        await put_settings(box, context, ".kimi-code", files)
        if _is_long(context):
            await write_private(box, _instruction_file(context), context.instruction, context.user)

    def launch(self, context: HarnessContext) -> Launch:
        """One run; that every tool may be used is implied by `--prompt`."""
        prompt = context.instruction
        if _is_long(context):
            prompt = f"Read the file {_instruction_file(context)} to its end, and do what it asks."
        argv = (bundle_program(context), "--output-format", "stream-json", f"--prompt={prompt}")
        return Launch(argv, _env(context))


def _env(context: HarnessContext) -> dict[str, str]:
    access = context.model_access
    env = {
        "HOME": context.home,
        "KIMI_MODEL_PROVIDER_TYPE": "kimi",
        "KIMI_MODEL_NAME": access.model,
        "KIMI_MODEL_BASE_URL": f"{access.base_url}/v1",
        "KIMI_MODEL_API_KEY": access.api_key,
        "KIMI_MODEL_MAX_OUTPUT_SIZE": str(MAX_OUTPUT_TOKENS),
        "KIMI_LOOP_MAX_ATTEMPTS_PER_STEP": str(MAX_ATTEMPTS),
        "KIMI_DISABLE_TELEMETRY": "1",
        "KIMI_CODE_NO_AUTO_UPDATE": "1",
    }
    if access.effort not in (None, "thinking"):
        env["KIMI_MODEL_THINKING_EFFORT"] = access.effort
    return env


def _folder(context: HarnessContext) -> str:
    return f"{context.home}/.kimi-code"


def _instruction_file(context: HarnessContext) -> str:
    return f"{_folder(context)}/instruction.md"


def _is_long(context: HarnessContext) -> bool:
    return len(context.instruction.encode()) > MAX_ARGUMENT_BYTES
