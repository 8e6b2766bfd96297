"""The keys of a Harbor `task.toml`, schema "1.0" to "1.4", as frozen models.

`read_task_config` is as lenient as Harbor 0.26 except where noted, and every refusal names its key.

Stricter than Harbor, because a silent acceptance would run something weaker than declared:
- timeouts and intervals are finite, greater than 0 and at most `task_scalars.MAX_TIMER_SEC`; sizes and
  cpus are greater than 0, `gpus` and `retries` are not negative;
- `memory = 2048` without a unit is refused (Harbor drops it in silence);
- booleans are no numbers;
- an empty artifact source, user, image or working directory is refused, `docker_image = ""` excepted.

More lenient, because nothing depends on it:
- `task.name` needs no `org/` (a task is known by its directory's name);
- `task.authors` may be plain strings;
- a UTF-8 byte order mark at the start of the file;
- any `schema_version` text, as in Harbor: a key we do not know is kept and reported, whatever the version.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from domain.errors import TaskError
from domain.task_scalars import (
    Count,
    Cpus,
    Delay,
    Megabytes,
    NonEmpty,
    Seconds,
    User,
    checked_destination,
    checked_service,
    fold_size,
    normal_host,
)
from domain.vocabulary import VerifierEnvironmentMode

__all__ = [
    "AgentConfig",
    "ArtifactConfig",
    "CollectConfig",
    "EnvironmentConfig",
    "HealthcheckConfig",
    "McpServerConfig",
    "NetworkMode",
    "NetworkPolicy",
    "StepConfig",
    "TaskConfig",
    "VerifierConfig",
    "read_task_config",
    "validation_sentence",
]

NetworkMode = Literal["no-network", "allowlist", "public"]

_QUIET_KEYS = frozenset({"env", "url", "headers"})
_STEP_NAME_FORBIDDEN = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f]')


class _Table(BaseModel):
    """A TOML table: unknown keys are kept, in `model_extra`."""

    model_config = ConfigDict(frozen=True, extra="allow")


class NetworkPolicy(BaseModel):
    """What a phase may reach. `allowed_hosts` is empty unless the mode is `allowlist`."""

    model_config = ConfigDict(frozen=True)

    mode: NetworkMode = "public"
    allowed_hosts: tuple[str, ...] = ()


class _NetworkTable(_Table):
    """The two network keys of `[environment]`, `[agent]` and `[verifier]`."""

    network_mode: NetworkMode | None = None
    allowed_hosts: tuple[str, ...] = ()

    @field_validator("allowed_hosts")
    @classmethod
    def _hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(normal_host(host) for host in hosts)

    @model_validator(mode="after")
    def _hosts_need_allowlist(self) -> Self:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError('allowed_hosts is accepted with network_mode = "allowlist" only')
        return self

    def declared_policy(self) -> NetworkPolicy | None:
        """The policy of this table's own keys, None where it declares no mode."""
        if self.network_mode is None:
            return None
        return NetworkPolicy(mode=self.network_mode, allowed_hosts=self.allowed_hosts)


class Author(_Table):
    name: str
    email: str | None = None


class PackageInfo(_Table):
    """`[task]`: what the author calls the task. Identity in a dataset is the directory's name."""

    name: NonEmpty
    version: NonEmpty | None = None
    description: str = ""
    authors: tuple[Author, ...] = ()
    keywords: tuple[str, ...] = ()

    @field_validator("authors", mode="before")
    @classmethod
    def _plain_names(cls, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        entries = cast("list[Any]", value)
        return [{"name": entry} if isinstance(entry, str) else entry for entry in entries]


class AgentConfig(_NetworkTable):
    """`[agent]`. A missing timeout is the platform's default; a missing user is the image's."""

    timeout_sec: Seconds | None = None
    user: User | None = None

    @model_validator(mode="after")
    def _no_run_level_seeding(self) -> Self:
        for key in ("load_trajectory", "resume_trajectory"):
            if key in (self.model_extra or {}):
                raise ValueError(f"{key} is not supported: put a trajectory.json beside the instruction")
        return self


class HealthcheckConfig(_Table):
    """`healthcheck`: run before the agent is installed; defaults of contract section 5."""

    command: NonEmpty
    interval_sec: Seconds = 5.0
    timeout_sec: Seconds = 30.0
    start_period_sec: Delay = 0.0
    start_interval_sec: Seconds = 5.0
    retries: Count = 3


class McpServerConfig(_Table):
    """`[[environment.mcp_servers]]` (contract 6.8)."""

    name: NonEmpty
    transport: Literal["stdio", "sse", "streamable-http"] = "sse"
    url: str | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    headers: dict[str, str] = Field(default_factory=dict[str, str])

    @field_validator("transport", mode="before")
    @classmethod
    def _http_alias(cls, value: Any) -> Any:
        return "streamable-http" if value == "http" else value

    @model_validator(mode="after")
    def _transport_members(self) -> Self:
        if self.transport == "stdio":
            if not self.command:
                raise ValueError('command is required for transport "stdio"')
            if "env" in (self.model_extra or {}):
                raise ValueError("env is not accepted: the server inherits [environment.env]")
        elif not self.url:
            raise ValueError(f'url is required for transport "{self.transport}"')
        elif "@" in self.url.split("://", 1)[-1].split("/", 1)[0]:
            raise ValueError("url must hold no credential")
        return self


class TpuConfig(_Table):
    type: NonEmpty
    topology: NonEmpty


class EnvironmentConfig(_NetworkTable):
    """`[environment]` and `[verifier.environment]`; old spellings are folded into the new keys."""

    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    os: Literal["linux", "windows"] = "linux"
    cpus: Cpus | None = None
    memory_mb: Megabytes | None = None
    storage_mb: Megabytes | None = None
    gpus: Count | None = None
    gpu_types: tuple[str, ...] | None = None
    tpu: TpuConfig | None = None
    mcp_servers: tuple[McpServerConfig, ...] = ()
    env: dict[str, str] = Field(default_factory=dict[str, str])
    skills_dir: NonEmpty | None = None
    healthcheck: HealthcheckConfig | None = None
    workdir: NonEmpty | None = None
    allow_internet: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _fold_old_spellings(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        table = dict(cast("dict[str, Any]", value))
        for old, new in (("memory", "memory_mb"), ("storage", "storage_mb")):
            fold_size(table, old, new)
        allow_internet = table.get("allow_internet")
        if isinstance(allow_internet, bool) and "network_mode" not in table and "allowed_hosts" not in table:
            table["network_mode"] = "public" if allow_internet else "no-network"
        return table

    @field_validator("os", mode="before")
    @classmethod
    def _lower_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _workdir_is_absolute(self) -> Self:
        if self.os == "linux" and self.workdir is not None and not self.workdir.startswith("/"):
            raise ValueError(f"workdir must be an absolute path, not {self.workdir!r}")
        return self

    def policy(self) -> NetworkPolicy:
        """The box's network: `network_mode` beats `allow_internet`, and `public` is the default."""
        return self.declared_policy() or NetworkPolicy()


class CollectConfig(_Table):
    """`[[verifier.collect]]`: a command run in a service after the agent."""

    command: NonEmpty
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: User | None = None

    @field_validator("service")
    @classmethod
    def _service(cls, value: str) -> str:
        return checked_service(value)


class VerifierConfig(_NetworkTable):
    """`[verifier]` and `[steps.verifier]`. A missing timeout is the platform's default."""

    timeout_sec: Seconds | None = None
    env: dict[str, str] = Field(default_factory=dict[str, str])
    user: User | None = None
    environment_mode: VerifierEnvironmentMode | None = None
    environment: EnvironmentConfig | None = None
    collect: tuple[CollectConfig, ...] = ()

    @model_validator(mode="after")
    def _shared_has_no_environment(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError('environment_mode = "shared" contradicts [verifier.environment]')
        return self

    def mode(self) -> VerifierEnvironmentMode:
        """The declared mode, else `separate` where an environment is declared, else `shared`."""
        if self.environment_mode is not None:
            return self.environment_mode
        return "shared" if self.environment is None else "separate"


class ArtifactConfig(_Table):
    """One entry of `artifacts`. A relative source is relative to the working directory."""

    source: NonEmpty
    destination: str | None = None
    exclude: tuple[str, ...] = ()
    service: str | None = None

    @field_validator("source")
    @classmethod
    def _source(cls, value: str) -> str:
        if ".." in PurePosixPath(value).parts:
            raise ValueError(f"must not contain '..': {value!r}")
        return value

    @field_validator("destination")
    @classmethod
    def _destination(cls, value: str | None) -> str | None:
        return None if not value else checked_destination(value)

    @field_validator("service")
    @classmethod
    def _service(cls, value: str | None) -> str | None:
        return None if value is None else checked_service(value)

    @model_validator(mode="after")
    def _other_services_need_absolute_sources(self) -> Self:
        if self.service not in (None, "main") and not self.source.startswith("/"):
            raise ValueError(f"source {self.source!r} of service {self.service!r} must be an absolute path")
        return self


def _entry_tables(value: Any) -> Any:
    """`artifacts` entries as tables; a bare string instead of a list is left to be refused."""
    if not isinstance(value, list):
        return value
    entries = cast("list[Any]", value)
    return [{"source": entry} if isinstance(entry, str) else entry for entry in entries]


Artifacts = Annotated[tuple[ArtifactConfig, ...], BeforeValidator(_entry_tables)]


class StepConfig(_Table):
    """`[[steps]]`."""

    name: str
    agent: AgentConfig = Field(default_factory=AgentConfig)
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    min_reward: float | dict[str, float] | None = None
    healthcheck: HealthcheckConfig | None = None
    artifacts: Artifacts = ()

    @field_validator("name")
    @classmethod
    def _portable_name(cls, value: str) -> str:
        if not value.strip() or value.endswith((".", " ")) or _STEP_NAME_FORBIDDEN.search(value):
            raise ValueError(f"{value!r} is not a portable directory name")
        if len(value.encode()) > 255:
            raise ValueError("is longer than 255 bytes")
        return value


class SolutionConfig(_Table):
    env: dict[str, str] = Field(default_factory=dict[str, str])


class TaskConfig(_Table):
    """The whole file."""

    schema_version: str = "1.4"
    task: PackageInfo | None = None
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    agent: AgentConfig = Field(default_factory=AgentConfig)
    verifier: VerifierConfig = Field(default_factory=VerifierConfig)
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    solution: SolutionConfig = Field(default_factory=SolutionConfig)
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    steps: tuple[StepConfig, ...] = ()
    artifacts: Artifacts = ()

    @model_validator(mode="before")
    @classmethod
    def _old_version_key(cls, value: Any) -> Any:
        if isinstance(value, dict) and "version" in value:
            table = dict(cast("dict[str, Any]", value))
            table.setdefault("schema_version", table.pop("version"))
            return table
        return cast("Any", value)

    @field_validator("steps")
    @classmethod
    def _distinct_names(cls, steps: tuple[StepConfig, ...]) -> tuple[StepConfig, ...]:
        seen: set[str] = set()
        for step in steps:
            key = unicodedata.normalize("NFC", step.name).casefold()
            if key in seen:
                raise ValueError(f"{step.name!r} is named twice (case and Unicode form do not distinguish)")
            seen.add(key)
        return steps

    def unknown_keys(self) -> tuple[str, ...]:
        """Dotted names of the keys that no schema version knows, sorted; `metadata` is free."""
        return tuple(sorted(_unknown(self, "")))


def read_task_config(text: str | bytes) -> TaskConfig:
    """The typed task.toml. Raises `TaskError` naming each key at fault."""
    table = _toml_table(text, "task.toml")
    try:
        return TaskConfig.model_validate(table)
    except ValidationError as error:
        raise TaskError(f"task.toml: {validation_sentence(error)}") from None


def _toml_table(text: str | bytes, file_name: str) -> dict[str, Any]:
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
    except UnicodeDecodeError as error:
        raise TaskError(f"{file_name}: not UTF-8 (byte {error.start})") from None
    try:
        table = tomllib.loads(decoded.removeprefix("\ufeff"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise TaskError(f"{file_name}: not TOML: {error}") from None
    if "\\" in decoded and _holds_nul(table):
        raise TaskError(f"{file_name}: holds a NUL character, which no path, variable or record can hold")
    return table


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict):
        return any(_holds_nul(each) for item in cast("dict[str, Any]", value).items() for each in item)
    return isinstance(value, list) and any(map(_holds_nul, cast("list[Any]", value)))


def validation_sentence(error: ValidationError, limit: int = 5) -> str:
    """What is wrong, each fault as `key: reason (got value)`, joined by semicolons."""
    faults = error.errors(include_url=False, include_context=False)
    parts = [f"{_dotted(fault['loc'])}: {_reason(fault)}{_given(fault)}" for fault in faults]
    more = f"; and {len(parts) - limit} more" if len(parts) > limit else ""
    return "; ".join(parts[:limit]) + more


def _reason(fault: ErrorDetails) -> str:
    """Pydantic's words in those of TOML."""
    return fault["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list")


def _given(fault: ErrorDetails) -> str:
    """The offending value, where it is short; never an environment's, a URL's or a header's."""
    value = fault["input"]
    is_short = isinstance(value, str | int | float) and len(repr(value)) <= 60
    if not is_short or fault["type"] == "value_error" or not _QUIET_KEYS.isdisjoint(fault["loc"]):
        return ""
    return f" (got {value!r})"


def _dotted(loc: tuple[int | str, ...]) -> str:
    path = ""
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".") or "the file"


def _unknown(table: BaseModel, prefix: str) -> list[str]:
    names = [f"{prefix}{key}" for key in (table.model_extra or {})]
    for key in type(table).model_fields:
        value = getattr(table, key)
        if isinstance(value, _Table):
            names += _unknown(value, f"{prefix}{key}.")
        elif isinstance(value, tuple):
            for index, entry in enumerate(cast("tuple[Any, ...]", value)):
                if isinstance(entry, _Table):
                    names += _unknown(entry, f"{prefix}{key}[{index}].")
    return names
