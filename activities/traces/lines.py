"""Bytes into lines, with bounded memory: a line longer than `MAX_LINE_BYTES` is dropped and told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_LINE_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class LongLine:
    """A line that was too long to be kept."""

    n_bytes: int


@dataclass
class LineSplitter:
    """Fed with pieces in their order; a line is given once its end has come."""

    _held: bytearray = field(default_factory=bytearray)
    _n_dropped: int = 0

    def feed(self, data: bytes) -> Iterator[bytes | LongLine]:
        """The lines that end in `data`, without their ends."""
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._hold(piece)
            yield self._take()
        self._hold(rest)

    def end(self) -> Iterator[bytes | LongLine]:
        """What came after the last line's end, if anything."""
        if self._held or self._n_dropped:
            yield self._take()

    def _hold(self, piece: bytes) -> None:
        if self._n_dropped or len(self._held) + len(piece) > MAX_LINE_BYTES:
            self._n_dropped += len(self._held) + len(piece)
            self._held.clear()
        else:
            self._held += piece

    def _take(self) -> bytes | LongLine:
        line = LongLine(self._n_dropped) if self._n_dropped else bytes(self._held)
        self._held.clear()
        self._n_dropped = 0
        return line
