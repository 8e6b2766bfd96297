"""The capability document of `GET /api/meta`: what a client would otherwise hardcode (contract §3.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from domain.agents import MAX_ARCHIVE_BYTES, MAX_PER_USER, MAX_SCRIPT_BYTES, RUN_CONTRACT
from domain.error_codes import ERROR_CODES
from domain.jobs import (
    DEFAULT_CONCURRENT_TRIALS,
    MAX_ATTEMPTS,
    MAX_CONCURRENT_TRIALS,
    MAX_TRIAL_SPEND_USD,
    MAX_TRIALS,
)
from domain.planning import JobRules
from domain.retry_policy import DEFAULT_MAX_RETRIES, MAX_RETRIES_CEILING
from domain.rosters import ROSTERS, Roster
from domain.vocabulary import (
    BINARY_EFFORTS,
    NETWORK_MODES,
    REASONING_EFFORTS,
    STATUS_VOCABULARIES,
    ImportWarningCode,
    SandboxProvider,
)

SCHEMA_VERSION = 1
_NO_GPUS = "no provider of this release attaches GPUs"
_NOT_YET_PROVIDERS = (SandboxProvider.E2B, SandboxProvider.DAYTONA, SandboxProvider.MODAL)


@dataclass(frozen=True)
class Deployment:
    """What differs from one installation to another. `upload_limits` are byte ceilings by name."""

    default_provider: SandboxProvider
    default_reason: str
    upload_limits: Mapping[str, int]
    rules: JobRules = field(default_factory=JobRules)


def capability_document(here: Deployment) -> dict[str, Any]:
    """The document of a deployment."""
    return {
        "schema_version": SCHEMA_VERSION,
        "agents": [_agent(roster) for roster in ROSTERS.values()],
        "agent_registration": {
            "supported": True,
            "max_per_user": MAX_PER_USER,
            "max_install_script_bytes": MAX_SCRIPT_BYTES,
            "max_archive_bytes": MAX_ARCHIVE_BYTES,
            "run_contract_env": list(RUN_CONTRACT),
        },
        "sandbox_providers": [
            _provider(provider, here.default_provider, here.default_reason) for provider in SandboxProvider
        ],
        "managed_providers": [],
        "platform_constraints": [
            {
                "subject": "network",
                "rule": "no-network and public are honoured; a task that declares allowlist is refused",
            },
            {"subject": "models", "rule": _model_rule(here.rules)},
        ],
        "network_modes": list(NETWORK_MODES),
        "statuses": {
            name: {"values": list(values), "terminal": [value for value in values if value in terminal]}
            for name, (values, terminal) in STATUS_VOCABULARIES.items()
        },
        "limits": {
            "job": {
                "reasoning_efforts": list(REASONING_EFFORTS),
                "binary_effort_values": list(BINARY_EFFORTS),
                "default_max_retries": DEFAULT_MAX_RETRIES,
                "max_retries": MAX_RETRIES_CEILING,
                "default_n_concurrent_trials": DEFAULT_CONCURRENT_TRIALS,
                "max_n_concurrent_trials": MAX_CONCURRENT_TRIALS,
                "max_n_attempts": MAX_ATTEMPTS,
                "max_trials": MAX_TRIALS,
                "default_max_trial_spend_usd": here.rules.default_trial_spend_usd,
                "max_trial_spend_usd": MAX_TRIAL_SPEND_USD,
            },
            "uploads": dict(here.upload_limits),
        },
        "import_warning_codes": [code.value for code in ImportWarningCode],
        "error_codes": list(ERROR_CODES),
        "gpu_concurrency_cap": 0,
        "analyze": None,
        # The contract retires `gemini`; it runs here.
        "retired_agents": [],
    }


def _model_rule(rules: JobRules) -> str:
    own = ", ".join(f"{name}/…" for name in sorted(rules.upstreams))
    return f"an agent runs the models of its roster{f', and {own}' if own else ''}"


def _agent(roster: Roster) -> dict[str, Any]:
    return {
        "name": roster.name,
        "effort_support": roster.effort_support,
        "version_pinnable": roster.is_version_pinnable,
        "runnable": roster.is_runnable,
        "reason": roster.reason,
        "default_model": roster.default_model,
        "default_reasoning_effort": roster.default_reasoning_effort,
        "latest_version": None,
        "supports_config": roster.supports_config,
        "presets": list(roster.presets),
        "models": [
            {
                "alias": model.alias,
                "model_id": model.model_id,
                "description": None,
                "reasoning_efforts": list(model.reasoning_efforts),
                "default_reasoning_effort": model.default_reasoning_effort,
            }
            for model in roster.models
        ],
    }


def _provider(
    provider: SandboxProvider, default_provider: SandboxProvider, default_reason: str
) -> dict[str, Any]:
    refuses = [{"what": "gpus", "reason": _NO_GPUS}]
    if provider in _NOT_YET_PROVIDERS:
        refuses = [{"what": "every task", "reason": "comes with the cloud provider release"}]
    if provider is SandboxProvider.LOCAL:
        refuses.append({"what": "docker_image", "reason": "a pinned image cannot be replaced by this host's"})
    is_default = provider is default_provider
    return {
        "name": provider.value,
        "default": is_default,
        "default_reason": default_reason if is_default else None,
        "sizing": {"from": "the task's own cpus and memory_mb, within the host's"},
        "refuses": refuses,
        "gpus": {"supported": False, "max_gpus": 0, "degrades_to": None, "reason": _NO_GPUS, "source": None},
    }
