"""The model protocols that harnesses speak, and how each says no."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from uuid import uuid4

Protocol = Literal["anthropic", "openai", "gemini"]


def protocol_of(path: str, headers: Mapping[str, str]) -> Protocol | None:
    """The protocol of a request, None for a path that none has. `/v1/models` is Anthropic's by its header."""
    if path.startswith("/v1/messages") or (path.startswith("/v1/models") and "anthropic-version" in headers):
        return "anthropic"
    if path.startswith(("/v1beta/", "/v1alpha/")):
        return "gemini"
    return "openai" if path.startswith("/v1/") else None


def refusal(protocol: Protocol, message: str) -> dict[str, Any]:
    """The body of a 401 in the protocol's own shape."""
    if protocol == "anthropic":
        error = {"type": "authentication_error", "message": message}
        return {"type": "error", "error": error, "request_id": f"req_{uuid4().hex}"}
    if protocol == "gemini":
        return {"error": {"code": 401, "message": message, "status": "UNAUTHENTICATED"}}
    return {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": "invalid_api_key",
        }
    }
