"""Chat streams tell their usage in a chunk without choices, and only to who asks. When the gateway asked in
the client's stead, the client must not see that chunk: some read its first choice without looking."""

from __future__ import annotations

import re

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_IS_USAGE = re.compile(rb'"choices"\s*:\s*\[\s*\]')


class UsageChunkFilter:
    """Passes an event stream's bytes but for events with no choices that have a usage."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now; an event's bytes only once it is whole."""
        text = self._rest + chunk
        parts: list[bytes] = []
        at = 0
        for end in _EVENT_END.finditer(text):
            event = text[at : end.end()]
            if _IS_USAGE.search(event) is None or b'"usage"' not in event:
                parts.append(event)
            at = end.end()
        self._rest = text[at:]
        return b"".join(parts)

    def end(self) -> bytes:
        """What the stream ended with, outside of a whole event."""
        rest, self._rest = self._rest, b""
        return rest
