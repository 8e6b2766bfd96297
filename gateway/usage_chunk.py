"""Chat streams tell their usage in a chunk without choices, and only to who asks. When the gateway asked in
the client's stead, the client must not see that chunk: some read its first choice without looking."""

from __future__ import annotations

import re

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_IS_USAGE = re.compile(rb'"choices"\s*:\s*\[\s*\]')
# No usage is told in more, so what is longer is passed on as it comes: it would be searched again and again.
MAX_USAGE_BYTES = 16 * 1024
_END_BYTES = 3


def _is_usage(event: bytes) -> bool:
    return _IS_USAGE.search(event) is not None and b'"usage"' in event


class UsageChunkFilter:
    """Passes an event stream's bytes but for events with no choices that have a usage."""

    def __init__(self) -> None:
        self._rest = b""
        self._is_passing = False
        """Within an event that is too long to be one of usage."""

    def feed(self, chunk: bytes) -> bytes:
        """What can be passed on now; a short event's bytes only once it is whole."""
        text = self._rest + chunk
        parts: list[bytes] = []
        at = 0
        for end in _EVENT_END.finditer(text):
            event = text[at : end.end()]
            if self._is_passing or not _is_usage(event):
                parts.append(event)
            at, self._is_passing = end.end(), False
        if len(text) - at > MAX_USAGE_BYTES:
            self._is_passing = True
            held = len(text) - _END_BYTES  # its end may be split
            parts.append(text[at:held])
            at = held
        self._rest = text[at:]
        return b"".join(parts)

    def end(self) -> bytes:
        """What the stream ended with, outside of a whole event."""
        rest, self._rest = self._rest, b""
        return rest
