"""What every server process needs to know: where the records and blobs are, and how loud to log."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

LogLevel = Literal["debug", "info", "warning", "error"]


def default_home() -> Path:
    """Where the embedded stack keeps its data when `EVOLVE_HOME` is not set."""
    return Path.home() / ".evolve"


class StoreSettings(BaseSettings):
    """Read from `EVOLVE_*`; an empty variable is an absent one. `evolve up` sets them for its children."""

    model_config = SettingsConfigDict(env_prefix="EVOLVE_", env_ignore_empty=True, frozen=True)

    home: Path = Field(default_factory=default_home, description="Data and logs of this machine.")
    database_url: SecretStr = Field(
        description="libpq URL: `postgresql://user:password@host/db`, or `postgresql:///db?host=/socket/dir`."
    )
    blob_url: str = Field(
        default="", description="`file:///dir`, `s3://…`, `gs://…` or `az://…`; default `$EVOLVE_HOME/blobs`."
    )
    secret_key: SecretStr | None = Field(
        default=None,
        description="The server secret, at least 32 characters; default the file `$EVOLVE_HOME/secret.key`.",
    )
    log_level: LogLevel = Field(default="info", description="Of the process's JSON log.")

    @model_validator(mode="after")
    def _blobs_default_to_home(self) -> Self:
        if not self.blob_url:
            # The model is frozen for its users; a validator is still part of making it.
            object.__setattr__(self, "blob_url", f"file://{self.home}/blobs")
        return self
