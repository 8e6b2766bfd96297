"""An error status in each protocol's own shape, for errors of another protocol or of a script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.protocols import Dialect

_ANTHROPIC: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GEMINI: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_OPENAI: Mapping[int, str] = {429: "rate_limit_error"}


def error_body(dialect: Dialect, status: int, message: str) -> dict[str, Any]:
    """The body of an error status."""
    if dialect == "messages":
        kind = _ANTHROPIC.get(status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_made"}
    if dialect == "gemini":
        return {"error": {"code": status, "message": message, "status": _GEMINI.get(status, "INTERNAL")}}
    kind = _OPENAI.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
