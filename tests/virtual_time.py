"""Workflows in virtual time: the dev server itself skips what nobody works through.

It does so for executions that were started with a `timeSkippingConfig`, and for their children, whenever no
activity runs and only timers are left; a skip takes it about a second. The SDK has no argument for it yet,
the server's HTTP API takes the JSON of the request.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from pydantic_core import to_json

from tests.temporal import free_port, running_temporal


@dataclass(frozen=True)
class SkippingServer:
    """A server whose time may be skipped: `address` for clients, `url` to start workflows by."""

    address: str
    url: str

    async def start(self, workflow: str, argument: Any, *, workflow_id: str, queue: str) -> None:
        """Start a workflow in virtual time."""
        payload = {
            "metadata": {"encoding": b64encode(b"json/plain").decode()},
            "data": b64encode(to_json(argument)).decode(),
        }
        body = {
            "workflowType": {"name": workflow},
            "taskQueue": {"name": queue},
            "input": {"payloads": [payload]},
            "timeSkippingConfig": {"enabled": True},
        }
        async with httpx.AsyncClient() as client:
            path = f"/api/v1/namespaces/evolve/workflows/{workflow_id}"
            (await client.post(f"{self.url}{path}", json=body)).raise_for_status()


@contextmanager
def running_skipping_server() -> Iterator[SkippingServer]:
    """Start one, stop it at the end."""
    port = free_port()
    flag = "frontend.WorkflowTimeSkippingEnabled=true"
    options = ("--http-port", str(port), "--dynamic-config-value", flag)
    with running_temporal("evolve", *options) as address:
        yield SkippingServer(address, f"http://127.0.0.1:{port}")
