"""Settings of the API process."""

from __future__ import annotations

from pydantic import Field

from store.rules import JobSettings


class ApiSettings(JobSettings):
    """`EVOLVE_*`, checked at start."""

    temporal_address: str = Field(default="127.0.0.1:7233", description="`host:port` of Temporal's frontend.")
    temporal_namespace: str = Field(
        default="evolve", description="Its namespace; who can reach it is an operator."
    )
    api_host: str = Field(default="127.0.0.1", description="Address that the API listens on.")
    api_port: int = Field(default=8800, ge=1, le=65535, description="Its port.")
