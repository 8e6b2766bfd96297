"""An error status in each protocol's own shape: the one table of their words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from uuid import uuid4

Protocol = Literal["anthropic", "openai", "gemini"]

_ANTHROPIC: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    426: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GEMINI: Mapping[int, str] = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    402: "FAILED_PRECONDITION",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    426: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_OPENAI: Mapping[int, str] = {402: "insufficient_quota", 429: "rate_limit_error"}


def error_body(
    protocol: Protocol, status: int, message: str, openai_code: str | None = None
) -> dict[str, Any]:
    """The body of an error status; OpenAI has a code beside the kind, for some."""
    if protocol == "anthropic":
        error = {"type": _ANTHROPIC.get(status, "api_error"), "message": message}
        return {"type": "error", "error": error, "request_id": f"req_{uuid4().hex}"}
    if protocol == "gemini":
        return {"error": {"code": status, "message": message, "status": _GEMINI.get(status, "INTERNAL")}}
    kind = _OPENAI.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": openai_code}}
