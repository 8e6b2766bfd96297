"""Keyset pages: an opaque cursor names the last row of a page by its sort key (contract §1.10)."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from pydantic_core import from_json, to_json

from domain.errors import ApiError

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000


@dataclass(frozen=True)
class PageRequest:
    """What a caller asks of a list: how many rows, and after which sort key."""

    limit: int = DEFAULT_LIMIT
    after: tuple[Any, ...] | None = None

    @property
    def fetch(self) -> int:
        """One row more than the page: whether it exists is `hasMore`."""
        return self.limit + 1


def parse_page(
    limit: str | None, cursor: str | None, shape: tuple[type, ...], *, default_limit: int = DEFAULT_LIMIT
) -> PageRequest:
    """A page request from the query's text; `shape` is the sort key's types, times as `datetime`.

    Raises `invalid_limit` outside 1..1000 and `invalid_cursor` for what no page of ours handed out.
    """
    size = default_limit
    if limit is not None:
        if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MAX_LIMIT:
            message = f"limit: a whole number from 1 to {MAX_LIMIT}, not {limit[:40]}."
            raise ApiError("invalid_limit", message, param="limit")
        size = int(limit)
    return PageRequest(size, None if cursor is None else _decode(cursor, shape))


def encode_cursor(key: Sequence[Any]) -> str:
    """The opaque text of a sort key."""
    return urlsafe_b64encode(to_json(list(key))).decode().rstrip("=")


def page(
    rows: Sequence[Any],
    request: PageRequest,
    key: Callable[[Any], Sequence[Any]],
    wire: Callable[[Any], dict[str, Any]],
) -> dict[str, Any]:
    """The standard envelope from `request.fetch` rows."""
    has_more = len(rows) > request.limit
    shown = rows[: request.limit]
    return {
        "items": [wire(row) for row in shown],
        "nextCursor": encode_cursor(key(shown[-1])) if has_more else None,
        "hasMore": has_more,
    }


def _decode(cursor: str, shape: tuple[type, ...]) -> tuple[Any, ...]:
    try:
        values = from_json(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return _typed(values, shape)
    except ValueError:
        raise ApiError("invalid_cursor", "cursor: not one that a page handed out.", param="cursor") from None


def _typed(values: Any, shape: tuple[type, ...]) -> tuple[Any, ...]:
    if not isinstance(values, list) or len(cast("list[Any]", values)) != len(shape):
        raise ValueError("another list's cursor")
    typed: list[Any] = []
    for value, kind in zip(cast("list[Any]", values), shape, strict=True):
        if kind is datetime:
            value = datetime.fromisoformat(str(value))
        if type(value) is not kind or (isinstance(value, str) and "\0" in value):
            raise ValueError("another list's cursor")
        typed.append(value)
    return tuple(typed)
