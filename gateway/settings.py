"""Settings of the gateway process."""

from __future__ import annotations

from pathlib import Path
from socket import gethostname
from typing import Self

from pydantic import Field, SecretStr, model_validator

from domain.models import MODEL_PROVIDERS, SCRIPTED
from store.rules import UpstreamSettings

_PROVIDER_KEY = "A key of {}, for users and operators who have set none with `evolve admin provider-key set`."


class GatewaySettings(UpstreamSettings):
    """`EVOLVE_*`, checked at start."""

    gateway_host: str = Field(default="127.0.0.1", description="Address that the gateway listens on.")
    gateway_port: int = Field(default=8801, ge=1, le=65535, description="Its port.")
    gateway_socket: Path = Field(
        default=Path(),
        description="Unix socket that the relays of this machine's boxes connect to; its directory is "
        "mounted into them. Default `$EVOLVE_HOME/run/gateway/gateway.sock`.",
    )
    gateway_id: str = Field(
        default_factory=gethostname,
        description="Names a gateway across its restarts: calls that it left open are booked when it starts "
        "again. With several gateways, one each.",
    )
    anthropic_api_key: SecretStr | None = Field(default=None, description=_PROVIDER_KEY.format("Anthropic"))
    openai_api_key: SecretStr | None = Field(default=None, description=_PROVIDER_KEY.format("OpenAI"))
    gemini_api_key: SecretStr | None = Field(default=None, description=_PROVIDER_KEY.format("Gemini"))
    openrouter_api_key: SecretStr | None = Field(default=None, description=_PROVIDER_KEY.format("OpenRouter"))
    fireworks_api_key: SecretStr | None = Field(default=None, description=_PROVIDER_KEY.format("Fireworks"))
    dashscope_api_key: SecretStr | None = Field(default=None, description=_PROVIDER_KEY.format("DashScope"))
    moonshot_api_key: SecretStr | None = Field(default=None, description=_PROVIDER_KEY.format("Moonshot"))
    zai_api_key: SecretStr | None = Field(default=None, description=_PROVIDER_KEY.format("Z.ai"))

    @model_validator(mode="after")
    def _socket_defaults_to_home(self) -> Self:
        if self.gateway_socket == Path():
            object.__setattr__(self, "gateway_socket", self.home / "run" / "gateway" / "gateway.sock")
        return self

    def provider_keys(self) -> dict[str, SecretStr]:
        """The keys of the environment, by provider."""
        found = {name: getattr(self, f"{name}_api_key") for name in MODEL_PROVIDERS if name != SCRIPTED}
        return {name: key for name, key in found.items() if key is not None}
