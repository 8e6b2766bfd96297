"""The rosters as a table: each built-in harness, its models and the efforts each takes (contract §9).

`gemini` is from the seeds' models page and is kept: the contract retires it, this platform runs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from domain.vocabulary import EffortSupport

NO_ADAPTER = "this release has no harness for it"

Models = tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
"""(aliases, the efforts that each of them takes)."""


@dataclass(frozen=True)
class HarnessRow:
    """One harness. `default_effort` is each model's default too, where the model takes it; else it is the
    last of the model's own."""

    name: str
    default_model: str
    models: Models
    effort_support: EffortSupport = "level"
    default_effort: str | None = "high"
    has_settings: bool = False
    """Takes `kwargs.config` and the presets."""
    stdout_file: str = ""
    """As Harbor names it (contract §8.2); empty: `<name>.txt`."""
    reason: str | None = None
    """Why it cannot run here; None: it can."""


LEVELS = ("low", "medium", "high", "xhigh", "max")
_LOW_TO_XHIGH = ("low", "medium", "high", "xhigh")
_LOW_TO_HIGH = ("low", "medium", "high")
_LOW_HIGH = ("low", "high")
_LOW_HIGH_MAX = ("low", "high", "max")

_GLM = ("glm-5.3", "glm-5.3-prime", "glm-5.3-flash", "glm-5.3-flashx")
_DEEPSEEK_FLASH = ("openrouter/deepseek/deepseek-v4.1-flash", "fireworks/deepseek-v4.1-flash")
_OPENROUTER_GLM = tuple(f"openrouter/z-ai/{name}" for name in _GLM)
_OPENROUTER_QWEN = ("openrouter/qwen/qwen3.8-max-0902", "openrouter/qwen/qwen3.8-max-prime")
_OPENROUTER_BUT_QWEN: Models = (
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
        LEVELS,
    ),
    (("openrouter/anthropic/claude-haiku-4.5",), ("off",)),
    (("openrouter/google/gemini-3.8-flash",), _LOW_TO_HIGH),
    (
        ("openrouter/moonshotai/kimi-k3", *_OPENROUTER_GLM, "openrouter/deepseek/deepseek-v4.1-flash"),
        _LOW_HIGH_MAX,
    ),
)
_OPENROUTER: Models = (*_OPENROUTER_BUT_QWEN, (_OPENROUTER_QWEN, _LOW_TO_XHIGH))

HARNESS_ROWS: tuple[HarnessRow, ...] = (
    HarnessRow(
        "claude",
        "opus",
        (
            (("fable", "opus", "sonnet"), LEVELS),
            (("haiku",), ()),
            ((*_GLM, *_DEEPSEEK_FLASH), _LOW_HIGH_MAX),
        ),
        has_settings=True,
        stdout_file="claude-code.txt",
    ),
    HarnessRow(
        "codex",
        "gpt-6.1-sol",
        (
            (("gpt-6-astra", "gpt-6.1-sol", "gpt-5.6-terra", "gpt-6-luna"), LEVELS),
            (("gpt-5.3-codex",), _LOW_TO_XHIGH),
        ),
        has_settings=True,
    ),
    HarnessRow(
        "gemini",
        "gemini-3.5-flash",
        ((("gemini-3.5-flash", "gemini-3.5-flash-lite", "gemini-3.1-pro-preview"), ()),),
        effort_support="none",
        default_effort=None,
        stdout_file="gemini-cli.txt",
    ),
    HarnessRow(
        "qwen",
        "qwen3.8-max",
        (
            (("qwen3.8-max", "qwen3.8-flash"), ("off", "thinking")),
            (("qwen3.8-max-prime",), ("thinking",)),
            (("qwen3.7-plus",), ("off", "minimal", "medium", "thinking")),
        ),
        effort_support="binary",
        default_effort="thinking",
        stdout_file="qwen-code.txt",
    ),
    HarnessRow(
        "kimi",
        "kimi-k3",
        (
            (("kimi-k3", "kimi-k3-raptor"), (*_LOW_HIGH_MAX, "thinking")),
            (("kimi-k2.7-code",), ("thinking",)),
        ),
        default_effort="thinking",
        stdout_file="kimi-code.txt",
    ),
    HarnessRow(
        "opencode",
        "openrouter/anthropic/claude-opus-5.5",
        (
            *_OPENROUTER_BUT_QWEN,
            (_OPENROUTER_QWEN, ("minimal", *_LOW_TO_XHIGH)),
            (("fireworks/deepseek-v4.1-flash",), _LOW_HIGH_MAX),
        ),
    ),
    HarnessRow(
        "droid",
        "claude-opus-5-5",
        (
            (("claude-fable-5.1", "claude-opus-5-5", "claude-sonnet-5-5", "gpt-5.6-terra"), LEVELS),
            (("claude-haiku-4-5",), ("off", *_LOW_TO_HIGH)),
            (("gemini-3.8-flash",), _LOW_TO_HIGH),
            (("qwen3.8-max",), ("low", "medium", "xhigh")),
            (("qwen3.8-max-prime",), _LOW_TO_XHIGH),
            (("kimi-k3", *_GLM, *_DEEPSEEK_FLASH), _LOW_HIGH_MAX),
        ),
    ),
    HarnessRow("pi", "openrouter/anthropic/claude-opus-5.5", _OPENROUTER, reason=NO_ADAPTER),
    HarnessRow("prime-agent", "openrouter/anthropic/claude-opus-5.5", _OPENROUTER, reason=NO_ADAPTER),
    HarnessRow(
        "dsh",
        "openrouter/deepseek/deepseek-v4.1-flash",
        (((*_DEEPSEEK_FLASH, "openrouter/deepseek/deepseek-v4-pro-0813"), _LOW_HIGH),),
        reason=NO_ADAPTER,
    ),
    HarnessRow(
        "zcode",
        "openrouter/z-ai/glm-5.3",
        (((*_OPENROUTER_GLM, "fireworks/glm-5.3", "fireworks/glm-5.3-flash"), _LOW_HIGH),),
        reason=NO_ADAPTER,
    ),
    HarnessRow(
        "antigravity",
        "gemini-3.8-flash",
        ((("gemini-3.8-flash", "gemini-3.5-flash-lite", "gemini-3.1-pro-preview"), _LOW_TO_HIGH),),
        reason=NO_ADAPTER,
    ),
)

# (harness, alias) → the model's id, where the two differ.
MODEL_IDS: dict[tuple[str, str], str] = {
    ("kimi", "kimi-k3"): "moonshot/kimi-k3",
    ("antigravity", "gemini-3.8-flash"): "vertex_ai/gemini-3.8-flash",
    ("antigravity", "gemini-3.5-flash-lite"): "vertex_ai/gemini-3.5-flash-lite",
    ("antigravity", "gemini-3.1-pro-preview"): "vertex_ai/gemini-3.1-pro-preview",
}
