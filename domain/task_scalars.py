"""Single values of a task.toml: their types, and the readers of old and free-form spellings.

The readers raise `ValueError` with a clause that follows the key's name.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StringConstraints

__all__ = [
    "MAX_BUILD_SEC",
    "MAX_TIMER_SEC",
    "Count",
    "Cpus",
    "Delay",
    "Megabytes",
    "NonEmpty",
    "Seconds",
    "User",
    "checked_destination",
    "checked_service",
    "fold_size",
    "normal_host",
]

MAX_TIMER_SEC = 2_147_483.647
# An image is built within an activity whose single try is bounded (four hours, workflows/options.py): a
# build that may take longer than that would be begun again for ever.
MAX_BUILD_SEC = 3 * 3600.0
"""The timer ceiling of contract section 5: 2,147,483,647 ms."""

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([GMK])\s*", re.IGNORECASE)
_SIZE_IN_MB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}
_HOST_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SERVICE_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*")


def _refuse_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not a boolean")
    return value


Seconds = Annotated[
    float, BeforeValidator(_refuse_boolean), Field(gt=0, le=MAX_TIMER_SEC, allow_inf_nan=False)
]
"""A duration: finite and greater than 0."""

Delay = Annotated[float, BeforeValidator(_refuse_boolean), Field(ge=0, le=MAX_TIMER_SEC, allow_inf_nan=False)]
"""A duration that may be 0."""

Megabytes = Annotated[int, BeforeValidator(_refuse_boolean), Field(gt=0)]
Count = Annotated[int, BeforeValidator(_refuse_boolean), Field(ge=0)]
Cpus = Annotated[float, BeforeValidator(_refuse_boolean), Field(gt=0, allow_inf_nan=False)]
NonEmpty = Annotated[str, StringConstraints(min_length=1)]


def _user_text(value: Any) -> Any:
    """A name, or a numeric id of any spelling, as text."""
    if isinstance(value, bool):
        raise ValueError("must be a user name or a numeric user id")
    return str(value) if isinstance(value, int) else value


User = Annotated[
    str, BeforeValidator(_user_text), StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\$?$")
]
"""A user of the image, by name or numeric id; `user:group` is refused."""


def fold_size(table: dict[str, Any], old: str, new: str) -> None:
    """`memory = "2G"` becomes `memory_mb = 2048`; raises `ValueError` when it cannot be read exactly."""
    if old not in table:
        return
    value = table.pop(old)
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f'{old} must be text like "2G", "512M" or "1024K", not {value!r}; or use {new}')
    size_mb = int(float(match[1]) * _SIZE_IN_MB[match[2].upper()])
    if table.setdefault(new, size_mb) != size_mb:
        raise ValueError(f"{old} = {value!r} ({size_mb} MB) contradicts {new} = {table[new]!r}")


def normal_host(host: str) -> str:
    """A host name, a leading-wildcard name, an address or a network, in lower case."""
    name = host.strip().lower().rstrip(".")
    labels = name.removeprefix("*.").split(".")
    is_address = _address(name)
    if is_address is not None:
        return is_address
    if "*." in name and _address(name.removeprefix("*.")) is not None:
        raise ValueError(f"{host!r}: a wildcard stands before a host name, not an address")
    if not all(_HOST_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{host!r} is no host name, address or network (no URLs, ports or paths)")
    return name


def _address(text: str) -> str | None:
    if "%" in text:
        return None
    try:
        return (ipaddress.ip_network if "/" in text else ipaddress.ip_address)(text).compressed
    except ValueError:
        return None


def checked_service(value: str) -> str:
    name = value.strip()
    if not _SERVICE_NAME.fullmatch(name):
        raise ValueError(f"{value!r} is no compose service name")
    return name


def checked_destination(value: str) -> str:
    path = PurePosixPath(value)
    if "\\" in value or path.is_absolute() or not path.parts or ".." in path.parts:
        raise ValueError(f"{value!r} must be a relative path with forward slashes and no '..'")
    if value.rstrip("/") == "manifest.json":
        raise ValueError("'manifest.json' is reserved for the collection's own manifest")
    return value
