"""What the API sends: JSON objects, and the one error envelope (contract §1.8)."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from starlette.exceptions import HTTPException

from domain.errors import ApiError, EvolveError
from store.outages import is_database_away

_log = logging.getLogger(__name__)
AWAY_RETRY_SEC = 2.0


def json_answer(document: dict[str, Any], status: int = 200) -> Response:
    """A JSON object; NaN and infinity, which JSON does not have, become null."""
    body = to_json(document, inf_nan_mode="null")
    return Response(body, status, media_type="application/json")


def no_content() -> Response:
    """204 with an empty body, which clients read as `{}`."""
    return Response(status_code=204)


def error_answer(error: ApiError, request_id: str | None) -> Response:
    """The envelope; absent members are left out."""
    members: dict[str, Any] = {
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "details": error.details,
        "retryAfterSec": error.retry_after_sec,
        "requestId": request_id,
    }
    present = {name: value for name, value in members.items() if value is not None}
    answer = json_answer({"error": present}, error.status)
    if error.retry_after_sec is not None:
        answer.headers["Retry-After"] = f"{error.retry_after_sec:g}"
    return answer


def database_away() -> ApiError:
    """Answered while Postgres restarts: no key can be looked up, so no request can be judged."""
    return ApiError(
        "credential_service_unavailable",
        "The database is not answering; try again shortly.",
        retry_after_sec=AWAY_RETRY_SEC,
    )


def as_api_error(error: Exception) -> ApiError:
    """Any error as the one that is answered; what is not ours to explain becomes `internal_error`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, HTTPException):
        return _routing_error(error)
    if isinstance(error, RequestValidationError):
        return ApiError("invalid_input", str(error.errors()[0]["msg"]))
    if is_database_away(error):
        return database_away()
    if isinstance(error, EvolveError):
        _log.error("request failed: %s: %s", error.code, error.message)
    else:
        _log.exception("request failed", exc_info=error)
    return ApiError("internal_error", "The server failed to answer this request.")


def install_error_handlers(app: FastAPI) -> None:
    """Every failure of a route leaves through the envelope."""

    async def handle(request: Request, error: Exception) -> Response:
        return error_answer(as_api_error(error), request.state.request_id)

    for kind in (ApiError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handle)


def _routing_error(error: HTTPException) -> ApiError:
    if error.status_code == 405:
        return ApiError("method_not_allowed", "This path does not take that method.", status=405)
    if error.status_code == 404:
        return ApiError("not_found", "No such path.")
    return ApiError("internal_error", str(error.detail), status=error.status_code)
