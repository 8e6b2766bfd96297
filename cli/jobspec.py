"""The body of `POST /api/jobs` from a config file and flags: a flag overrides its field of the file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import typer
import yaml

from cli.cells import members
from cli.client import Json
from cli.run_flags import RunFlags
from domain.rosters import ROSTERS

# The published client's other word for it.
_EFFORT_ALIASES = {"no-thinking": "off"}


def job_body(flags: RunFlags) -> Json:
    """The request body. Raises a usage error for flags that make none."""
    body = read_config(flags.config) if flags.config else {}
    _override_datasets(body, flags)
    _override_agents(body, flags)
    for name, value in (
        ("job_name", flags.job_name),
        ("org", flags.org),
        ("n_attempts", flags.n_attempts),
        ("n_concurrent_trials", flags.n_concurrent),
        ("max_trial_spend_usd", _finite("--max-trial-spend", flags.max_trial_spend)),
        ("sandbox_provider", flags.provider),
        ("timeout_multiplier", _finite("--timeout-multiplier", flags.timeout_multiplier)),
        ("agent_env", key_values("--ae", flags.agent_env or ()) or None),
    ):
        if value is not None:
            body[name] = value
    _override_retry(body, flags)
    if flags.verifier_env:
        given = key_values("--ve", flags.verifier_env)
        body["verifier_env"] = {**cast("Json", body.get("verifier_env") or {}), **given}
    return body


def read_config(path: Path) -> Json:
    """A YAML or JSON file with the request's own field names; the server judges the fields."""
    try:
        value: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _usage("-c", f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(value, dict):
        raise _usage("-c", f"{path}: not a mapping of job fields")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise _usage("-c", f"{path}: {error}; quote dates and versions") from None
    return cast("Json", value)


def dataset_selector(reference: str, flag: str = "-d") -> Json:
    """`name[@version]`, split at the first `@`; an empty half is a usage error."""
    name, at, version = (part.strip() for part in reference.partition("@"))
    if not name or (at and not version):
        raise _usage(flag, f"{reference!r} is not name or name@version")
    return {"name": name, "version": version} if at else {"name": name}


def key_values(flag: str, pairs: Sequence[str]) -> dict[str, str]:
    """`KEY=VALUE` words; a usage error for any other."""
    given: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise _usage(flag, f"{key!r} is not KEY=VALUE")
        given[key] = value
    return given


def _override_datasets(body: Json, flags: RunFlags) -> None:
    if flags.datasets:
        body["datasets"] = [dataset_selector(reference) for reference in flags.datasets]
    selectors = members(body.get("datasets"))
    if not selectors:
        raise _usage("-d", "name at least one dataset, by -d or in the config file")
    for selector in selectors:
        if flags.include:
            selector["task_names"] = list(flags.include)
        if flags.exclude:
            selector["exclude_task_names"] = list(flags.exclude)
        if flags.n_tasks is not None:
            selector["n_tasks"] = flags.n_tasks


def _override_agents(body: Json, flags: RunFlags) -> None:
    if flags.agents or flags.models:
        body["agents"] = _arms(members(body.get("agents")), flags)
    arms = members(body.get("agents"))
    if not arms:
        raise _usage("-a", "name an agent, by -a or in the config file")
    config = _agent_config(flags.agent_kwargs or ())
    for arm in arms:
        if flags.effort:
            arm["reasoning_effort"] = _EFFORT_ALIASES.get(flags.effort, flags.effort)
        if flags.preset:
            arm["preset"] = flags.preset
        if config is not None:
            arm["kwargs"] = {**cast("Json", arm.get("kwargs") or {}), "config": config}


def _arms(from_file: list[Json], flags: RunFlags) -> list[Json]:
    """Every agent with every model, and once without where it calls none and another one does. Without -a,
    the models go to the file's agent, if it names just one."""
    models = flags.models or []
    if flags.agents:
        bases = [_agent(reference) for reference in flags.agents]
    else:
        if len({str(arm.get("name")) for arm in from_file}) != 1:
            raise _usage("-m", "which agent's model is it? Give -a, too")
        bases = [{key: value for key, value in from_file[0].items() if key != "model_name"}]
    callers = [base for base in bases if _needs_model(base)]
    if callers and not models:
        raise _usage("-m", f"{callers[0]['name']} must be given a model")
    arms: list[Json] = []
    for base in bases:
        takes_model = base in callers or not callers
        arms += [{**base, "model_name": model} for model in models] if models and takes_model else [base]
    return arms


def _needs_model(base: Json) -> bool:
    roster = ROSTERS.get(str(base.get("name")))
    return roster is None or roster.needs_model


def _agent(reference: str) -> Json:
    """`name[@version]`."""
    name, at, version = (part.strip() for part in reference.partition("@"))
    if not name or (at and not version):
        raise _usage("-a", f"{reference!r} is not name or name@version")
    return {"name": name, "version": version} if at else {"name": name}


def _agent_config(pairs: Sequence[str]) -> Json | None:
    """`config=<path or inline JSON>`; the file is read here."""
    config: Json | None = None
    for pair in pairs:
        key, _, value = pair.partition("=")
        if key != "config" or not value:
            raise _usage("--ak", f"{pair!r}: only config=<path or inline JSON> is known")
        try:
            text = value if value.lstrip().startswith("{") else Path(value).read_text(encoding="utf-8")
            read: Any = yaml.safe_load(text)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise _usage("--ak", f"{value}: {' '.join(str(error).split())}") from None
        if not isinstance(read, dict):
            raise _usage("--ak", f"{value}: not an object of settings")
        config = cast("Json", read)
    return config


def _override_retry(body: Json, flags: RunFlags) -> None:
    asked = {
        "max_retries": flags.max_retries,
        "include_exceptions": flags.retry_include or None,
        "exclude_exceptions": flags.retry_exclude or None,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    if given:
        body["retry"] = {**cast("Json", body.get("retry") or {}), **given}


def _finite(flag: str, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise _usage(flag, f"{value} is not a finite number")
    return value


def _usage(flag: str, message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint=flag)
