"""Settings of the gateway process."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from store.settings import StoreSettings


class GatewaySettings(StoreSettings):
    """`EVOLVE_*`, checked at start."""

    gateway_host: str = Field(default="127.0.0.1", description="Address that the gateway listens on.")
    gateway_port: int = Field(default=8801, ge=1, le=65535, description="Its port.")
    gateway_socket: Path = Field(
        default=Path(),
        description="Unix socket that the relays of this machine's boxes connect to; its directory is "
        "mounted into them. Default `$EVOLVE_HOME/run/gateway/gateway.sock`.",
    )

    @model_validator(mode="after")
    def _socket_defaults_to_home(self) -> Self:
        if self.gateway_socket == Path():
            object.__setattr__(self, "gateway_socket", self.home / "run" / "gateway" / "gateway.sock")
        return self
