"""Settings of `evolve up`: where its data is and which ports it takes."""

from __future__ import annotations

import os
from typing import Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from cli.stack.errors import StackError

LogLevel = Literal["debug", "info", "warning", "error"]
# They point a process at a part of production; the stack starts its own and would not use them.
PRODUCTION_ONLY = ("EVOLVE_DATABASE_URL", "EVOLVE_TEMPORAL_ADDRESS")
# Paths that a person may give as they stand in their directory; the children run in the home.
PATH_VARIABLES = ("EVOLVE_SCRIPTED_UPSTREAM", "EVOLVE_BUNDLES_DIR", "EVOLVE_STATE_DIR")


class StackSettings(BaseSettings):
    """`EVOLVE_*`. A Temporal port of None is the one in temporal-dev.yaml."""

    model_config = SettingsConfigDict(env_prefix="EVOLVE_", env_ignore_empty=True, frozen=True)

    api_port: int = Field(default=8800, ge=1, le=65535, description="Port of the API.")
    gateway_port: int = Field(default=8801, ge=1, le=65535, description="Port of the gateway.")
    temporal_port: int | None = Field(
        default=None, ge=1, le=65535, description="Of the embedded Temporal's frontend. Default 7233."
    )
    temporal_ui_port: int | None = Field(
        default=None, ge=1, le=65535, description="Of the embedded Temporal's UI. Default 8233."
    )


def environment_for_elsewhere() -> dict[str, str]:
    """This process's environment for a child with another working directory: its paths are absolute."""
    paths = {name: os.path.abspath(os.environ[name]) for name in PATH_VARIABLES if os.environ.get(name)}
    return {**os.environ, **paths}


def check_environment() -> None:
    """Refuse a variable that would otherwise be passed over in silence."""
    for name in PRODUCTION_ONLY:
        if os.environ.get(name):
            raise StackError(
                f"{name} is set, but `evolve up` starts its own: unset it, or start the processes alone with "
                "`evolve serve`"
            )
