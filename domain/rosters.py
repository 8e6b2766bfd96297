"""The built-in agents a job may name, as data: models, efforts, what they accept (contract §9).

A harness that this release does not run yet is listed with `runnable` false and the reason, so that a
client can show it and a job that names it is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from domain.vocabulary import AGENT_PRESETS, EffortSupport

NOT_YET = "comes with the harness release"

_LEVELS = ("low", "medium", "high", "xhigh", "max")
_LOW_TO_XHIGH = ("low", "medium", "high", "xhigh")
_LOW_TO_HIGH = ("low", "medium", "high")
_LOW_HIGH_MAX = ("low", "high", "max")

_STDOUT_FILES: Mapping[str, str] = MappingProxyType(
    {
        "claude": "claude-code.txt",
        "gemini": "gemini-cli.txt",
        "qwen": "qwen-code.txt",
        "kimi": "kimi-code.txt",
    }
)
_MODEL_IDS: Mapping[str, str] = MappingProxyType({"kimi-k3": "moonshot/kimi-k3"})


@dataclass(frozen=True)
class ModelOption:
    """A model as a harness knows it; both alias and id are accepted as `model_name`."""

    alias: str
    model_id: str
    reasoning_efforts: tuple[str, ...]
    default_reasoning_effort: str | None


@dataclass(frozen=True)
class Roster:
    """One built-in agent. `models` is empty for an agent that calls no model: it needs none named."""

    name: str
    effort_support: EffortSupport
    is_runnable: bool
    reason: str | None
    is_version_pinnable: bool
    default_model: str | None
    default_reasoning_effort: str | None
    supports_config: bool
    presets: tuple[str, ...]
    stdout_file: str
    """The file of a trial folder's `agent/` that holds its stdout, as Harbor names it (contract §8.2)."""
    models: tuple[ModelOption, ...]

    @property
    def needs_model(self) -> bool:
        """False for `oracle` and `nop`."""
        return bool(self.models)


def _models(
    groups: Sequence[tuple[Sequence[str], Sequence[str]]], default: str | None
) -> tuple[ModelOption, ...]:
    return tuple(
        ModelOption(alias, _MODEL_IDS.get(alias, alias), tuple(efforts), _default_effort(efforts, default))
        for aliases, efforts in groups
        for alias in aliases
    )


def _default_effort(efforts: Sequence[str], default: str | None) -> str | None:
    if not efforts:
        return None
    return default if default in efforts else efforts[-1]


def _harness(
    name: str,
    default_model: str | None,
    groups: Sequence[tuple[Sequence[str], Sequence[str]]],
    *,
    effort: tuple[EffortSupport, str | None] = ("level", "high"),
    has_settings: bool = False,
) -> Roster:
    return Roster(
        name=name,
        effort_support=effort[0],
        is_runnable=False,
        reason=NOT_YET,
        is_version_pinnable=True,
        default_model=default_model,
        default_reasoning_effort=effort[1],
        supports_config=has_settings,
        presets=AGENT_PRESETS if has_settings else (),
        stdout_file=_STDOUT_FILES.get(name, f"{name}.txt"),
        models=_models(groups, effort[1]),
    )


def _modelless(name: str) -> Roster:
    return Roster(name, "none", True, None, False, None, None, False, (), f"{name}.txt", ())


_GLM = ("glm-5.3", "glm-5.3-prime", "glm-5.3-flash", "glm-5.3-flashx")
_DEEPSEEK_FLASH = ("openrouter/deepseek/deepseek-v4.1-flash", "fireworks/deepseek-v4.1-flash")
_OPENROUTER_GLM = tuple(f"openrouter/z-ai/{name}" for name in _GLM)
_OPENROUTER = (
    (
        (
            "openrouter/anthropic/claude-fable-5.1",
            "openrouter/anthropic/claude-opus-5.5",
            "openrouter/anthropic/claude-sonnet-5.5",
            "openrouter/openai/gpt-6-astra",
            "openrouter/openai/gpt-6.1-sol",
            "openrouter/openai/gpt-5.6-terra",
            "openrouter/openai/gpt-6-luna",
        ),
        _LEVELS,
    ),
    (("openrouter/anthropic/claude-haiku-4.5",), ("off",)),
    (("openrouter/google/gemini-3.8-flash",), _LOW_TO_HIGH),
    (("openrouter/qwen/qwen3.8-max-0902", "openrouter/qwen/qwen3.8-max-prime"), ("minimal", *_LOW_TO_XHIGH)),
    (
        ("openrouter/moonshotai/kimi-k3", *_OPENROUTER_GLM, "openrouter/deepseek/deepseek-v4.1-flash"),
        _LOW_HIGH_MAX,
    ),
)

_ROSTERS: tuple[Roster, ...] = (
    _modelless("oracle"),
    _modelless("nop"),
    _harness(
        "claude",
        "opus",
        (
            (("fable", "opus", "sonnet"), _LEVELS),
            (("haiku",), ()),
            ((*_GLM, *_DEEPSEEK_FLASH), _LOW_HIGH_MAX),
        ),
        has_settings=True,
    ),
    _harness(
        "codex",
        "gpt-6.1-sol",
        (
            (("gpt-6-astra", "gpt-6.1-sol", "gpt-5.6-terra", "gpt-6-luna"), _LEVELS),
            (("gpt-5.3-codex",), _LOW_TO_XHIGH),
        ),
        has_settings=True,
    ),
    _harness(
        "gemini",
        "gemini-3.5-flash",
        ((("gemini-3.5-flash", "gemini-3.5-flash-lite", "gemini-3.1-pro-preview"), ()),),
        effort=("none", None),
    ),
    _harness(
        "qwen",
        "qwen3.8-max",
        (
            (("qwen3.8-max", "qwen3.8-flash"), ("off", "thinking")),
            (("qwen3.8-max-prime",), ("thinking",)),
            (("qwen3.7-plus",), ("off", "minimal", "medium", "thinking")),
        ),
        effort=("binary", "thinking"),
    ),
    _harness(
        "kimi",
        "kimi-k3",
        (
            (("kimi-k3", "kimi-k3-raptor"), (*_LOW_HIGH_MAX, "thinking")),
            (("kimi-k2.7-code",), ("thinking",)),
        ),
        effort=("level", "thinking"),
    ),
    _harness(
        "opencode",
        "openrouter/anthropic/claude-opus-5.5",
        (*_OPENROUTER, (("fireworks/deepseek-v4.1-flash",), _LOW_HIGH_MAX)),
    ),
    _harness(
        "droid",
        "claude-opus-5-5",
        (
            (("claude-fable-5.1", "claude-opus-5-5", "claude-sonnet-5-5", "gpt-5.6-terra"), _LEVELS),
            (("claude-haiku-4-5",), ("off", *_LOW_TO_HIGH)),
            (("gemini-3.8-flash",), _LOW_TO_HIGH),
            (("qwen3.8-max",), ("low", "medium", "xhigh")),
            (("qwen3.8-max-prime",), _LOW_TO_XHIGH),
            (("kimi-k3", *_GLM, *_DEEPSEEK_FLASH), _LOW_HIGH_MAX),
        ),
    ),
)

ROSTERS: Mapping[str, Roster] = MappingProxyType({roster.name: roster for roster in _ROSTERS})
