"""Which harness a name means."""

from __future__ import annotations

from activities.harnesses.base import Harness
from activities.harnesses.claude import ClaudeHarness
from activities.harnesses.codex import CodexHarness
from activities.harnesses.droid import DroidHarness
from activities.harnesses.gemini import GeminiHarness
from activities.harnesses.kimi import KimiHarness
from activities.harnesses.nop import NopHarness
from activities.harnesses.opencode import OpencodeHarness
from activities.harnesses.oracle import OracleHarness
from activities.harnesses.qwen import QwenHarness

_ALL: tuple[Harness, ...] = (
    *(OracleHarness(), NopHarness()),
    *(ClaudeHarness(), CodexHarness(), GeminiHarness(), QwenHarness()),
    *(KimiHarness(), OpencodeHarness(), DroidHarness()),
)

HARNESSES: dict[str, Harness] = {harness.name: harness for harness in _ALL}
