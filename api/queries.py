"""Query parameters and JSON bodies, as routes read them."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from fastapi import Request

from domain.errors import ApiError
from domain.requests import parse_json_object
from store.pages import DEFAULT_LIMIT, PageRequest, parse_page

# A job body is small; the largest text field, a prompt, is far below this.
MAX_JSON_BYTES = 32 * 1024 * 1024

MAX_IDEMPOTENCY_KEY_CHARS = 255

Word = TypeVar("Word", bound=StrEnum)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body; raises `invalid_input` with 413 above `max_bytes`, before the rest is read."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise ApiError("invalid_input", f"The body is larger than {max_bytes} bytes.", status=413)
    return bytes(body)


async def json_body(request: Request) -> dict[str, Any]:
    """The body's JSON object; an absent body is `{}`."""
    return parse_json_object(await read_body(request, MAX_JSON_BYTES))


def page_request(
    request: Request, cursor_shape: tuple[type, ...], *, default_limit: int = DEFAULT_LIMIT
) -> PageRequest:
    """`limit` and `cursor` of the query."""
    query = request.query_params
    return parse_page(query.get("limit"), query.get("cursor"), cursor_shape, default_limit=default_limit)


def comma_words(request: Request, name: str, words: type[Word], code: str) -> list[str] | None:
    """A comma list of vocabulary words, None when absent; raises `code` for one outside it."""
    text = request.query_params.get(name)
    if text is None:
        return None
    known = {word.value for word in words}
    asked = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [part for part in asked if part not in known]
    if unknown or not asked:
        message = f"{name}: {', '.join(unknown[:5]) or 'nothing'} is not among {', '.join(words)}."
        raise ApiError(code, message, param=name)
    return asked


def one_of(request: Request, name: str, words: tuple[str, ...], default: str) -> str:
    """One word of a query; raises `invalid_input` for another."""
    value = request.query_params.get(name, default)
    if value not in words:
        raise ApiError("invalid_input", f"{name}: {value[:40]} is not among {', '.join(words)}.", param=name)
    return value


def idempotency_key(request: Request) -> str | None:
    """The header of contract §1.11, None when absent."""
    key = request.headers.get("idempotency-key")
    if key is not None and (not key or len(key) > MAX_IDEMPOTENCY_KEY_CHARS):
        message = f"Idempotency-Key: 1 to {MAX_IDEMPOTENCY_KEY_CHARS} characters."
        raise ApiError("invalid_input", message, param="Idempotency-Key")
    return key
