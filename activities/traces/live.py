"""An agent's trace while it runs: rows for each piece of output, as soon as that piece is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from activities.following import STREAM_MAX_BYTES
from activities.traces.base import StreamParser, StreamReport, TraceEvent
from activities.traces.lines import LineSplitter, LongLine
from store.database import Database
from store.fences import Fence
from store.traces import TraceRow, close_events, stored_output, write_events

FIRST_SEQ = 2
"""1 is the prompt. A later step's events stand behind its own prompt."""
STDERR_END_BYTES = 16 * 1024
MAX_EVENTS = 200_000
"""What is kept of one trace. An agent's program may print lines without end; readers must live on."""
LINES_AT_ONCE = 500
"""Between so many lines other work of this process has its turn."""

Stream = Literal["out", "err"]


class LiveTrace:
    """Reads one run's output from its start and writes its events under the numbers `first_seq` and on.

    `open` it before following: what the store already holds is read again, and rows that are there stay
    as they are. `feed` it each piece after that piece was stored. `finish` it when the process has ended.
    After an error of the store, `feed` the same piece again, or open anew: neither doubles nor loses a row.
    """

    def __init__(
        self,
        db: Database,
        fence: Fence,
        parser: Callable[[], StreamParser],
        streams: Mapping[Stream, str],
        first_seq: int,
    ) -> None:
        self._db = db
        self._fence = fence
        self._new_parser = parser
        self._streams = streams
        self._parser = parser()
        self._lines = LineSplitter()
        self._read_to: dict[Stream, int] = {"out": 0, "err": 0}
        self._stderr_end = b""
        self._pending: list[TraceRow] = []
        self._first_seq = first_seq
        self._next_seq = first_seq
        self._n_dropped = 0

    @classmethod
    async def open(
        cls,
        db: Database,
        fence: Fence,
        parser: Callable[[], StreamParser],
        streams: Mapping[Stream, str],
        first_seq: int = FIRST_SEQ,
    ) -> LiveTrace:
        """A trace that has caught up with the store. `streams`: the process's stream → the stored one."""
        trace = cls(db, fence, parser, streams, first_seq)
        await trace._catch_up()
        return trace

    @property
    def stderr_end(self) -> str:
        """The last of what the process wrote to stderr."""
        return self._stderr_end.decode("utf-8", "replace")

    async def feed(self, stream: Stream, offset: int, data: bytes) -> None:
        """Take a piece of output; its events are rows when this returns. What was read before is left out."""
        at = self._read_to[stream]
        if offset > at and stream == "out":
            self._add(self._parser.lost("output that was not stored", offset - at))
        new = data[max(0, at - offset) :]
        self._read_to[stream] = max(at, offset + len(data))
        if stream == "err":
            self._stderr_end = (self._stderr_end + new)[-STDERR_END_BYTES:]
        else:
            for n, line in enumerate(self._lines.feed(new), start=1):
                self._add(self._events(line))
                if n % LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)
        await self._flush()

    async def finish(self) -> StreamReport:
        """Write the last rows, and all again if the store has lost some; what the stream says of its run.

        Of the newest run only: what stands behind it is removed.
        """
        if await self._close():
            return self._parser.report
        again = await LiveTrace.open(self._db, self._fence, self._new_parser, self._streams, self._first_seq)
        await again._close()
        return again._parser.report

    async def report(self) -> StreamReport:
        """What the stream of an earlier run, which was finished, says of it."""
        await self._end()
        return self._parser.report

    async def _catch_up(self) -> None:
        for stream, name in self._streams.items():
            trial_id, attempt_number = self._fence.trial_id, self._fence.attempt_number
            async for offset, data in stored_output(self._db, trial_id, attempt_number, name):
                await self.feed(stream, offset, data)

    async def _close(self) -> bool:
        await self._end()
        if not any(self._read_to.values()):
            # Nothing was printed, or it is no longer in the store: the rows are left as they are.
            return True
        return await close_events(self._db, self._fence, self._first_seq, self._next_seq - 1)

    async def _end(self) -> None:
        for line in self._lines.end():
            self._add(self._events(line))
        if self._read_to["out"] >= STREAM_MAX_BYTES:
            self._add(self._parser.lost(f"output after its first {STREAM_MAX_BYTES} bytes", 0))
        self._add(self._parser.end(self.stderr_end))
        if self._n_dropped:
            told = {"reason": f"events after the first {MAX_EVENTS}", "events": self._n_dropped}
            self._append(TraceEvent("trace_loss", told))
        await self._flush()

    def _events(self, line: bytes | LongLine) -> list[TraceEvent]:
        if isinstance(line, LongLine):
            return self._parser.lost("a line that was too long", line.n_bytes)
        return self._parser.feed(line)

    def _add(self, events: Iterable[TraceEvent]) -> None:
        for event in events:
            if self._next_seq < self._first_seq + MAX_EVENTS:
                self._append(event)
            else:
                self._n_dropped += 1

    def _append(self, event: TraceEvent) -> None:
        self._pending.append((self._next_seq, event.type, event.data))
        self._next_seq += 1

    async def _flush(self) -> None:
        if self._pending:
            await write_events(self._db, self._fence, self._pending)
            self._pending.clear()
