"""The job event stream: server-sent events, resumed after a break (contract §1.16)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import httpx

from cli.client import Client, Json, path
from cli.errors import Refused, Unreachable
from cli.patience import FIRST_WAIT_SEC, LONGEST_WAIT_SEC, is_passing
from domain.events import TERMINAL_EVENTS
from domain.vocabulary import JOB_TERMINAL


@dataclass(frozen=True)
class JobEvent:
    """`seq` is -1 for an event without a usable id: it does not move the resume point."""

    seq: int
    type: str
    data: Json

    @property
    def is_terminal(self) -> bool:
        return self.type in TERMINAL_EVENTS


def follow_job(
    client: Client,
    job_id: str,
    *,
    on_break: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[JobEvent]:
    """Every event from the first to the terminal one, each once, over as many connections as it takes.

    `on_break` is told why, before each wait. Raises `Refused` for an answer that waiting cannot change.
    """
    last_seq: int | None = None
    wait_sec = FIRST_WAIT_SEC
    is_draining = False
    while True:
        stated_wait_sec, reason = 0.0, "the event stream ended early"
        try:
            for event in _connection(client, job_id, last_seq):
                last_seq = event.seq if event.seq >= 0 else last_seq
                wait_sec = FIRST_WAIT_SEC
                yield event
                if event.is_terminal:
                    return
            if is_draining:
                return
            # A clean end without a terminal event: read on once more if the job is over.
            is_draining = client.get(path("/api/jobs/{}", job_id)).get("status") in JOB_TERMINAL
            if is_draining:
                continue
        except Unreachable as error:
            reason = error.message
        except Refused as error:
            if not is_passing(error):
                raise
            stated_wait_sec, reason = error.retry_after_sec or 0.0, error.message
        on_break(reason)
        sleep(max(wait_sec, stated_wait_sec))
        wait_sec = min(wait_sec * 2, LONGEST_WAIT_SEC)


def _connection(client: Client, job_id: str, last_seq: int | None) -> Iterator[JobEvent]:
    headers = {"Accept": "text/event-stream"}
    if last_seq is not None:
        headers["Last-Event-ID"] = str(last_seq)
    timeout = httpx.Timeout(60.0, connect=10.0)
    route = path("/api/jobs/{}/events", job_id)
    with client.stream("GET", route, headers=headers, timeout=timeout) as response:
        yield from parse_events(response.iter_raw())


def parse_events(chunks: Iterable[bytes]) -> Iterator[JobEvent]:
    """Events of a byte stream. A block with an id, a type or data is one; comments are not."""
    fields: dict[str, list[str]] = {}
    for line in _lines(chunks):
        if not line:
            if fields:
                yield _event(fields)
            fields = {}
            continue
        name, _, value = line.partition(":")
        if name in ("id", "event", "data"):
            fields.setdefault(name, []).append(value.removeprefix(" "))


def _event(fields: dict[str, list[str]]) -> JobEvent:
    seq = fields.get("id", [""])[-1]
    return JobEvent(
        seq=int(seq) if seq.isascii() and seq.isdigit() else -1,
        type=fields.get("event", ["message"])[-1],
        data=_data("\n".join(fields.get("data", ["{}"]))),
    )


def _data(text: str) -> Json:
    try:
        value: Any = json.loads(text)
    except ValueError:
        return {"raw": text}
    return cast("Json", value) if isinstance(value, dict) else {"value": value}


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Lines ended by LF, CRLF or CR. Only these three: JSON may hold U+2028 and its like."""
    pending = b""
    for chunk in chunks:
        pending += chunk
        # A CR at the very end may be half of a CRLF.
        held, pending = (b"\r", pending[:-1]) if pending.endswith(b"\r") else (b"", pending)
        *lines, rest = pending.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        pending = rest + held
        for line in lines:
            yield line.decode("utf-8", errors="replace")
