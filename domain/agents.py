"""Agents that users register: what a registration may say, what its command is run with (contract §6.10)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, cast

from pydantic_core import from_json

from domain.errors import ApiError
from domain.rosters import ROSTERS
from domain.trials import wire_time

AgentSource = Literal["install_script", "tarball"]

MAX_PER_USER = 50
MAX_SCRIPT_BYTES = 1024 * 1024
MAX_ARCHIVE_BYTES = 64 * 1024 * 1024
MAX_UNPACKED_BYTES = 256 * 1024 * 1024
MAX_ARCHIVE_ENTRIES = 20_000
MAX_COMMAND_CHARS = 16_384
MAX_ENV_NAMES = 64
MAX_ENV_VALUE_CHARS = 8_192

INSTALL_SCRIPT = "install.sh"
"""What of an uploaded directory is run to build it; without one, its `bin/` is taken as it is."""

INSTRUCTION_FILE, GATEWAY_BASE_URL = "EVOLVE_INSTRUCTION_FILE", "EVOLVE_GATEWAY_BASE_URL"
GATEWAY_API_KEY, MODEL = "EVOLVE_GATEWAY_API_KEY", "EVOLVE_MODEL"
OPENAI_BASE_URL, OPENAI_API_KEY = "OPENAI_BASE_URL", "OPENAI_API_KEY"
RUN_CONTRACT = (INSTRUCTION_FILE, GATEWAY_BASE_URL, GATEWAY_API_KEY, OPENAI_BASE_URL, OPENAI_API_KEY, MODEL)
"""The names that a run command may rely on, and that a declared environment may not have."""

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]|_(?!_)){0,62}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_CREDENTIAL_WORDS = frozenset(
    {
        *("AUTH", "AUTHORIZATION", "BEARER", "COOKIE", "CREDENTIAL", "CREDENTIALS", "JWT", "KEY", "KEYS"),
        *(
            "PASS",
            "PASSPHRASE",
            "PASSWD",
            "PASSWORD",
            "PAT",
            "PRIVATE",
            "SECRET",
            "SECRETS",
            "TOKEN",
            "TOKENS",
        ),
    }
)
# Names whose words are run together: APIKEY, ACCESSTOKEN, DBPASSWORD.
_CREDENTIAL_ENDS = ("APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "ACCESSKEY", "PRIVATEKEY")
_CREDENTIAL_VALUES = re.compile(
    "|".join(
        (
            r"\bsk-[A-Za-z0-9_-]{16,}",
            r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}",
            r"\bxox[abprs]-[\w-]{10,}",
            r"\bAKIA[0-9A-Z]{16}|\bAIza[\w-]{30,}",
            r"\bevk-[\w-]{16,}",
            r"\beyJ[\w-]{10,}\.[\w-]{10,}\.",
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
            r"\b[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@",
        )
    )
)


@dataclass(frozen=True)
class Registration:
    """What a request says of an agent, its rules held; the source's bytes come apart from it."""

    name: str
    run_command: str
    env: Mapping[str, str]
    org: str | None


@dataclass(frozen=True)
class RegisteredAgent:
    """One revision of a registered agent. It never changes: an edit makes another one."""

    id: str
    name: str
    org: str
    source: AgentSource
    run_command: str
    env: Mapping[str, str]
    created_at: datetime
    updated_at: datetime

    def wire(self) -> dict[str, Any]:
        """Agent of contract §3.5."""
        return {
            "name": self.name,
            "org": self.org,
            "source": self.source,
            "run_command": self.run_command,
            "env": dict(self.env),
            "created_at": wire_time(self.created_at),
            "updated_at": wire_time(self.updated_at),
        }


def read_registration(fields: Mapping[str, str], path_name: str | None = None) -> Registration:
    """A registration from a form's metadata. `path_name` is the name in the URL of a PUT.

    Raises `agent_invalid_name`, `agent_name_reserved`, `agent_invalid_env` and `invalid_input`.
    """
    name = fields.get("name", path_name or "")
    if path_name is not None and name != path_name:
        message = f"name: the form says {name[:100]}, the path {path_name[:100]}."
        raise ApiError("invalid_input", message, param="name")
    _check_name(name)
    command = fields.get("run_command", "")
    if not command.strip() or len(command) > MAX_COMMAND_CHARS:
        message = f"run_command: needed, at most {MAX_COMMAND_CHARS} characters."
        raise ApiError("invalid_input", message, param="run_command")
    return Registration(name, command, read_env(fields.get("env", "{}")), fields.get("org"))


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        message = (
            f"name: {name[:100]!r} is not up to 63 of a-z, 0-9, `.`, `-` and single `_`, "
            "beginning with a letter or digit."
        )
        raise ApiError("agent_invalid_name", message, param="name")
    if name in ROSTERS:
        raise ApiError("agent_name_reserved", f"name: {name} is a built-in agent.", param="name")


def read_env(text: str) -> dict[str, str]:
    """The declared environment from its JSON text; raises `agent_invalid_env` that names the variable, and
    never its value."""
    try:
        value = from_json(text)
    except ValueError:
        raise _bad_env("not JSON") from None
    if not isinstance(value, dict):
        raise _bad_env("not an object of strings")
    env = cast("dict[str, Any]", value)
    if len(env) > MAX_ENV_NAMES:
        raise _bad_env(f"more than {MAX_ENV_NAMES} variables")
    for name, each in env.items():
        _check_variable(name, each)
    return env


def _check_variable(name: str, value: Any) -> None:
    if _ENV_NAME.fullmatch(name) is None:
        raise _bad_env(f"{name[:128]!r} is no name of a variable")
    if not isinstance(value, str) or "\0" in value or len(value) > MAX_ENV_VALUE_CHARS:
        raise _bad_env(f"{name} must be text of at most {MAX_ENV_VALUE_CHARS} characters")
    if name in RUN_CONTRACT:
        raise _bad_env(f"{name} is the run contract's own")
    # A number is a setting (`MAX_TOKENS`), not a credential.
    if (_is_credential_name(name) and not value.isdigit()) or _CREDENTIAL_VALUES.search(value) is not None:
        raise _bad_env(f"{name} looks like a credential; attach a secret to the job instead")


def _is_credential_name(name: str) -> bool:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper().split("_")
    return not _CREDENTIAL_WORDS.isdisjoint(words) or name.upper().endswith(_CREDENTIAL_ENDS)


def _bad_env(what: str) -> ApiError:
    return ApiError("agent_invalid_env", f"env: {what}.", param="env")
