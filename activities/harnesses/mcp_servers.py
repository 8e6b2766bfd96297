"""A task's `[[environment.mcp_servers]]` in the words of the CLIs' own settings (contract 6.8)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from domain.task_config import McpServerConfig


def kinded_servers(servers: Iterable[McpServerConfig], kind: str) -> dict[str, Any]:
    """By name, with the transport (`stdio`, `sse`, `http`) told under the key `kind`."""
    return {each.name: _kinded(each, kind) for each in servers}


def _kinded(server: McpServerConfig, kind: str) -> dict[str, Any]:
    if server.transport == "stdio":
        return {kind: "stdio", "command": server.command, "args": list(server.args)}
    remote = "sse" if server.transport == "sse" else "http"
    return {kind: remote, "url": server.url, **_headers(server)}


def trusted_servers(servers: Iterable[McpServerConfig]) -> dict[str, Any]:
    """As Gemini CLI and its fork Qwen Code have them: the transport is told by which key holds the address;
    `trust` lets a tool run unasked."""
    return {each.name: {**_told_by_address(each), "trust": True} for each in servers}


def _told_by_address(server: McpServerConfig) -> dict[str, Any]:
    if server.transport == "stdio":
        return {"command": server.command, "args": list(server.args)}
    return {"url" if server.transport == "sse" else "httpUrl": server.url, **_headers(server)}


def local_or_remote_servers(servers: Iterable[McpServerConfig]) -> dict[str, Any]:
    """As opencode has them: it finds out by itself which of the two HTTP transports a server speaks."""
    return {each.name: {**_local_or_remote(each), "enabled": True} for each in servers}


def _local_or_remote(server: McpServerConfig) -> dict[str, Any]:
    if server.transport == "stdio":
        return {"type": "local", "command": [server.command, *server.args]}
    return {"type": "remote", "url": server.url, **_headers(server)}


def _headers(server: McpServerConfig) -> dict[str, Any]:
    return {"headers": server.headers} if server.headers else {}
