"""Factory's droid (`droid`): speaks Messages, Responses or Chat Completions, whichever the model's provider
does, so that the gateway passes its bytes through.

Measured with 0.225.2:
- It needs no account: with `FACTORY_AIRGAP_ENABLED` and a model of our own it reaches nothing else, and its
  web tools, which are Factory's servers, are gone. Without it a box without network hangs before the first
  call. The package is unlicensed; it is fetched from the public registry and not passed on.
- A refusal with 402 ends it at once on all three wires, exit code 1. What breaks, before an answer or in
  its middle, is tried again after 3 s and more (429 five times, 5xx ten), a refused connection is not; no
  setting for it.
- It knows the roster's models by their vendors' names, and how each is told an effort: `-r` is enough for
  those. Of a name that it does not know it drops the effort: it is put into the body by `extraArgs`.
- The npm package that is named after it asks for a platform package that the registry does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from activities.harnesses.base import (
    Bundle,
    HarnessContext,
    HomeRules,
    Launch,
    ModelAccess,
    bundle_program,
)
from activities.harnesses.home import put_settings
from activities.harnesses.mcp_servers import kinded_servers
from activities.sandboxes.base import Box
from domain.models import MODEL_PROVIDERS, WireProtocol, route_of

KEY_VARIABLE = "EVOLVE_GATEWAY_API_KEY"
MODEL_ID = "custom:gateway"


@dataclass(frozen=True)
class Wire:
    """One of its providers: its name in the settings, and what of the gateway's URL it is given."""

    provider: str
    path: str


CHAT = Wire("generic-chat-completion-api", "/v1")
WIRES: Mapping[WireProtocol, Wire] = {
    "messages": Wire("anthropic", ""),
    "responses": Wire("openai", "/v1"),
    "chat": CHAT,
}


class DroidHarness:
    """Factory's droid."""

    name = "droid"
    stdout_file = "droid.txt"
    package = "@factory/cli-linux-x64"
    tested_version = "0.225.2"
    parser_name = "droid"
    home_rules = HomeRules(
        captured=(".factory",),
        excluded=(".factory/cache/*", ".factory/certs/*", ".factory/telemetry/*", ".factory/host.json"),
    )

    def bundle(self, version: str) -> Bundle:
        """One program that runs by itself."""
        return Bundle(
            harness=self.name,
            version=version,
            packages=(f"{self.package}@{version}",),
            entry=f"node_modules/{self.package}/bin/droid",
        )

    async def install(self, box: Box, context: HarnessContext) -> None:
        """Settings, MCP servers and skills; the key is in the environment only."""
        files = {"settings.json": settings_of(context.model_access)}
        if context.task.mcp_servers:
            files["mcp.json"] = {"mcpServers": kinded_servers(context.task.mcp_servers, "type")}
        await put_settings(box, context, ".factory", files)

    def launch(self, context: HarnessContext) -> Launch:
        """The instruction comes by stdin."""
        access = context.model_access
        argv = (bundle_program(context), "exec", "--skip-permissions-unsafe", "-o", "stream-json")
        effort = ("-r", access.effort) if access.effort else ()
        env = {
            "HOME": context.home,
            "FACTORY_AIRGAP_ENABLED": "true",
            KEY_VARIABLE: access.api_key,
        }
        return Launch((*argv, "-m", MODEL_ID, *effort), env, context.instruction.encode())


def settings_of(access: ModelAccess) -> dict[str, Any]:
    """`~/.factory/settings.json`: one model of our own."""
    wire = wire_of(access.model)
    model = {
        "id": MODEL_ID,
        "displayName": access.model,
        "model": access.model,
        "provider": wire.provider,
        "baseUrl": f"{access.base_url}{wire.path}",
        "apiKey": f"${{{KEY_VARIABLE}}}",
    }
    extra = _extra_args(access, wire)
    return {"customModels": [{**model, "extraArgs": extra} if extra else model]}


def wire_of(model: str) -> Wire:
    """The first wire of the model's provider that droid speaks; Chat Completions for any other."""
    route = route_of(model)
    provider = MODEL_PROVIDERS.get(route.provider) if route else None
    spoken = (WIRES[each] for each in (provider.protocols if provider else ()) if each in WIRES)
    return next(spoken, CHAT)


def _extra_args(access: ModelAccess, wire: Wire) -> dict[str, Any]:
    """The effort for a name that is no vendor's own: a reseller's or a declared upstream's has a `/`."""
    effort = access.effort
    if effort in (None, "off") or "/" not in access.model:
        return {}
    if wire is WIRES["messages"]:
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": effort}}
    if wire is WIRES["responses"]:
        return {"reasoning": {"effort": effort, "summary": "auto"}}
    return {"reasoning_effort": effort}
