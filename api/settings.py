"""Settings of the API process."""

from __future__ import annotations

from pydantic import Field

from store.settings import StoreSettings


class ApiSettings(StoreSettings):
    """`EVOLVE_*`, checked at start."""

    temporal_address: str = "127.0.0.1:7233"
    temporal_namespace: str = "evolve"
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8800, ge=1, le=65535)
