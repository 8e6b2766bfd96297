"""The ports of one stack. A busy one is named before anything is started, with the variable that moves it."""

from __future__ import annotations

import socket

from pydantic import BaseModel, ConfigDict

from cli.stack.errors import PortTaken

HOST = "127.0.0.1"
# Of each port: the process that listens there, and its variable.
OWNERS = {
    "api": ("api", "EVOLVE_API_PORT"),
    "gateway": ("gateway", "EVOLVE_GATEWAY_PORT"),
    "temporal": ("temporal", "EVOLVE_TEMPORAL_PORT"),
    "temporal_ui": ("temporal", "EVOLVE_TEMPORAL_UI_PORT"),
}


class StackPorts(BaseModel):
    """All on 127.0.0.1."""

    model_config = ConfigDict(frozen=True)
    api: int
    gateway: int
    temporal: int
    temporal_ui: int

    @property
    def temporal_address(self) -> str:
        return f"{HOST}:{self.temporal}"

    def url(self, process: str) -> str | None:
        """Where people and clients find a process; None for one without a port."""
        urls = {"api": self.api, "gateway": self.gateway, "temporal": self.temporal_ui}
        return f"http://{HOST}:{urls[process]}" if process in urls else None

    def check(self, running: set[str]) -> None:
        """Raise `PortTaken` for two that are equal, and for one in use that no process in `running` owns."""
        seen: dict[int, str] = {}
        for name, (process, variable) in OWNERS.items():
            number: int = getattr(self, name)
            other = seen.setdefault(number, variable)
            if other is not variable:
                raise PortTaken(f"{other} and {variable} are both {number}: choose two")
            if process not in running:
                _check_free(number, process, variable)


def _check_free(number: int, process: str, variable: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As servers do: connections of an earlier one that are winding down do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, number))
        except OSError as error:
            raise PortTaken(
                f"port {number}, for {process}, cannot be used ({error.strerror}): stop what listens there, "
                f"or set {variable} to a free port"
            ) from error
