"""Reading JSON that somebody else wrote: what is not of the expected shape is as good as absent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast


def mapping(value: Any) -> dict[str, Any]:
    """The object, or an empty one."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def items(value: Any) -> list[Any]:
    """The list, or an empty one."""
    return cast(list[Any], value) if isinstance(value, list) else []


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """The objects of a list; what else is in it is passed over."""
    return (cast(dict[str, Any], item) for item in items(value) if isinstance(item, dict))
