"""Our own processes as children of the stack, and the environment that makes them one installation."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass

from cli.stack.child import ChildSpec, StopLadder, run_tool
from cli.stack.home import Home
from cli.stack.ports import HOST, StackPorts
from cli.stack.probes import http_ok
from cli.stack.settings import environment_for_elsewhere

PREPARE_TIMEOUT_SEC = 120.0
# A client's, not a server's: a child has no use for them.
CLIENT_VARIABLES = ("EVOLVE_API_KEY", "EVOLVE_DASHBOARD_URL")
# No dependency phones home. They must be set before the interpreter starts: litellm reads them at import.
SILENCE = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_OFFLINE_MODE": "true",
}
# The worker hands its long activities over, the others finish what they answer.
STOP_LADDERS: dict[str, StopLadder] = {
    "worker": ((signal.SIGTERM, 20.0),),
    "api": ((signal.SIGTERM, 15.0),),
    "gateway": ((signal.SIGTERM, 10.0),),
}


@dataclass(frozen=True)
class Services:
    """api, gateway and worker of one home."""

    home: Home
    ports: StackPorts
    temporal_namespace: str

    def specs(self) -> tuple[ChildSpec, ...]:
        """In the order of a start."""
        return (self._spec("gateway"), self._spec("api"), self._spec("worker"))

    async def prepare_database(self) -> None:
        """Migrate, and on a first start mint the owner's key into credentials.json."""
        await run_tool(
            "evolve migrate",
            (*self._command, "serve", "prepare", "--dashboard-url", str(self.ports.url("api"))),
            self.environment,
            PREPARE_TIMEOUT_SEC,
        )

    @property
    def _command(self) -> tuple[str, ...]:
        # -P: a user's own `api/` folder in the working directory must not shadow ours.
        return (sys.executable, "-P", "-m", "cli.main")

    @property
    def environment(self) -> dict[str, str]:
        """Ours, with where the stack's parts are. Provider keys of the person's environment go on."""
        inherited = environment_for_elsewhere()
        for name in CLIENT_VARIABLES:
            inherited.pop(name, None)
        return {
            **inherited,
            **SILENCE,
            "PYTHONUNBUFFERED": "1",
            "EVOLVE_HOME": str(self.home.path),
            "EVOLVE_HOST_ID": os.environ.get("EVOLVE_HOST_ID") or self.home.host_id(),
            "EVOLVE_DATABASE_URL": self.home.database_url,
            "EVOLVE_TEMPORAL_ADDRESS": self.ports.temporal_address,
            "EVOLVE_TEMPORAL_NAMESPACE": self.temporal_namespace,
            "EVOLVE_API_HOST": HOST,
            "EVOLVE_API_PORT": str(self.ports.api),
            "EVOLVE_GATEWAY_HOST": HOST,
            "EVOLVE_GATEWAY_PORT": str(self.ports.gateway),
            "EVOLVE_GATEWAY_SOCKET": str(self.home.gateway_socket),
            "EVOLVE_HEALTH_SOCKET": str(self.home.worker_socket),
        }

    def _spec(self, name: str) -> ChildSpec:
        return ChildSpec(
            name=name,
            argv=(*self._command, "serve", name),
            env=self.environment,
            cwd=self.home.path,
            is_ready=lambda _pid: is_healthy(name, self.home, self.ports),
            stop_ladder=STOP_LADDERS[name],
        )


async def is_healthy(name: str, home: Home, ports: StackPorts) -> bool:
    """Whether api, gateway or worker answers at `/healthz`; the worker has a unix socket for it."""
    address = {"api": (HOST, ports.api), "gateway": (HOST, ports.gateway), "worker": home.worker_socket}
    return await http_ok(address[name])
