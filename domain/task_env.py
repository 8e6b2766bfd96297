"""Environment values of a task: literals, and templates that a secret or a default fills (contract 6.8)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from domain.errors import TaskError

__all__ = ["EnvValue", "env_values", "resolve_env"]

_TEMPLATE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?\}", re.DOTALL)
_EMBEDDED_TEMPLATE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-[^}]*)?\}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class EnvValue(BaseModel):
    """An environment value: a literal, or a template `${variable}` with or without a default."""

    model_config = ConfigDict(frozen=True)

    literal: str | None = None
    variable: str | None = None
    default: str | None = None

    @property
    def is_satisfied(self) -> bool:
        """Whether it has a value with no secret attached."""
        return self.literal is not None or self.default is not None


def resolve_env(env: Mapping[str, EnvValue]) -> dict[str, str]:
    """Literals and defaults; a template with neither secret nor default is left out."""
    resolved: dict[str, str] = {}
    for key, value in env.items():
        chosen = value.literal if value.literal is not None else value.default
        if chosen is not None:
            resolved[key] = chosen
    return resolved


def env_values(env: Mapping[str, str], table: str) -> dict[str, EnvValue]:
    """The values of a table of task.toml. Raises `TaskError` naming the key at fault."""
    return {key: _env_value(key, value, table) for key, value in env.items()}


def _env_value(key: str, value: str, table: str) -> EnvValue:
    if not _ENV_NAME.fullmatch(key):
        raise TaskError(f"[{table}]: {key!r} is no environment variable name")
    if "\0" in value:
        raise TaskError(f"[{table}].{key}: holds a NUL character")
    match = _TEMPLATE.fullmatch(value)
    if match is not None:
        return EnvValue(variable=match[1], default=match[2])
    if _EMBEDDED_TEMPLATE.search(value):
        raise TaskError(f"[{table}].{key}: a template must be the whole value, not a part of {value!r}")
    return EnvValue(literal=value)
