"""A table as TOML text, for agents that read it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, Any]) -> str:
    """One line a key, tables inline. A value that is None is left out, since TOML has none."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items() if value is not None)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    """A basic string; JSON's escapes are TOML's, but for DEL, which JSON lets through."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value).items()
        return (
            "{"
            + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in members if each is not None)
            + "}"
        )
    return "[" + ", ".join(_value(each) for each in cast("Sequence[Any]", value) if each is not None) + "]"
