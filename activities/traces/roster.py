"""Which parser reads which harness's stdout. An agent of one's own, `oracle` and `nop` have none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from activities.traces.base import StreamParser
from activities.traces.claude import ClaudeParser
from activities.traces.codex import CodexParser
from activities.traces.droid import DroidParser
from activities.traces.gemini import GeminiParser
from activities.traces.kimi import KimiParser
from activities.traces.opencode import OpencodeParser
from activities.traces.qwen import QwenParser

PARSERS: Mapping[str, Callable[[], StreamParser]] = MappingProxyType(
    {
        "claude": ClaudeParser,
        "codex": CodexParser,
        "gemini": GeminiParser,
        "qwen": QwenParser,
        "kimi": KimiParser,
        "opencode": OpencodeParser,
        "droid": DroidParser,
    }
)
