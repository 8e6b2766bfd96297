"""An arm's preset and settings: what they mean for the agent's own (contract 6.1, rule 7)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from activities.harnesses.base import HarnessContext

NO_INTERNET = "no-internet"
PINNED_CONTEXT = "pinned-context"
PINNED_CONTEXT_TOKENS = 200_000
"""Contract section 5."""


def is_web_off(context: HarnessContext) -> bool:
    """Whether no vendor may search or fetch the web for the agent, from machines of its own.

    By preset, and for every task whose agent may not reach the internet itself.
    """
    return context.arm.preset == NO_INTERNET or context.task.agent_network.mode != "public"


def own_config(context: HarnessContext) -> dict[str, Any]:
    """`kwargs.config`: the settings that the user gives, which ours are stamped over."""
    config: dict[str, Any] | None = (context.arm.kwargs or {}).get("config")
    return config or {}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `over` stamped on it: tables by key, everything else replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = merged(cast("Mapping[str, Any]", below), cast("Mapping[str, Any]", value))
        result[key] = value
    return result
