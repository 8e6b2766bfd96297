"""Which of a harness's own settings a job may not set in `kwargs.config` (contract §6.1).

A trial is metered by the gateway under the arm's model, so a setting that would pay otherwise, ask elsewhere,
choose another model or bring variables of its own is refused by its path. The platform's own settings are
stamped over what is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from domain.errors import ApiError

_BILLING = "who pays is the platform's to say"
_URL = "where calls go is the platform's to say"
_MODEL = "the arm names the model"
_ENV = "environment belongs in the task or in a secret"

# By path from the root of the settings.
REFUSED_KEYS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "claude": {
            "apiKeyHelper": _BILLING,
            "awsAuthRefresh": _BILLING,
            "awsCredentialExport": _BILLING,
            "gcpAuthRefresh": _BILLING,
            "forceLoginMethod": _BILLING,
            "forceLoginOrgUUID": _BILLING,
            "fastMode": _BILLING,
            "policyHelper": _BILLING,
            "xaaIdp": _BILLING,
            "forceRemoteSettingsRefresh": _URL,
            "httpHookAllowedEnvVars": _ENV,
            "proxyAuthHelper": _URL,
            "otelHeadersHelper": _URL,
            "model": _MODEL,
            "availableModels": _MODEL,
            "modelOverrides": _MODEL,
            "fallbackModel": _MODEL,
            "advisorModel": _MODEL,
        },
        "codex": {
            "cli_auth_credentials_store": _BILLING,
            "forced_chatgpt_workspace_id": _BILLING,
            "forced_login_method": _BILLING,
            "preferred_auth_method": _BILLING,
            "service_tier": _BILLING,
            "model": _MODEL,
            "review_model": _MODEL,
            "model_catalog_json": _MODEL,
            "model_provider": _URL,
            "model_providers": _URL,
            "oss_provider": _URL,
            "openai_base_url": _URL,
            "chatgpt_base_url": _URL,
            "otel": _URL,
            "profile": "a profile could set any of the keys that are refused",
            "profiles": "a profile could set any of the keys that are refused",
            "shell_environment_policy": _ENV,
        },
    }
)
# At any depth, whatever the harness, compared without case and separators.
_ANYWHERE: Mapping[str, str] = MappingProxyType(
    {
        "env": _ENV,
        "environment": _ENV,
        "envkey": _ENV,
        "envvars": _ENV,
        "envhttpheaders": _ENV,
        "bearertokenenvvar": _ENV,
        "apikey": _BILLING,
        "authtoken": _BILLING,
        "baseurl": _URL,
        "apibase": _URL,
        "proxy": _URL,
        "httpproxy": _URL,
        "httpsproxy": _URL,
    }
)


def refuse_config_keys(agent: str, config: Mapping[str, Any], param: str) -> None:
    """Raise `agent_config_key_refused` for settings that a job may not make; `details` names all of them.

    `param` is the path of the settings in the request.
    """
    refused = list(_refused(config, REFUSED_KEYS.get(agent, {})))
    if refused:
        path, reason = refused[0]
        raise ApiError(
            "agent_config_key_refused",
            f"{param}.{path}: {reason}.",
            param=f"{param}.{path}",
            details={"keys": [each for each, _ in refused]},
        )


def _refused(config: Mapping[str, Any], table: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(path, reason), from the outside in; what is below a refused key is not looked at."""
    for key, value in config.items():
        # A dotted key is a path to TOML and to nobody else: its first part counts.
        reason = table.get(key.partition(".")[0]) or _reason_anywhere(key)
        if reason is not None:
            yield key, reason
        else:
            yield from ((f"{key}{path}", why) for path, why in _below(value))


def _below(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for path, reason in _refused(cast("Mapping[str, Any]", value), {}):
            yield f".{path}", reason
    elif isinstance(value, list):
        for position, item in enumerate(cast("list[Any]", value)):
            yield from ((f"[{position}]{path}", reason) for path, reason in _below(item))


def _reason_anywhere(key: str) -> str | None:
    parts = ("".join(c for c in part if c.isalnum()).lower() for part in key.split("."))
    return next((_ANYWHERE[part] for part in parts if part in _ANYWHERE), None)
