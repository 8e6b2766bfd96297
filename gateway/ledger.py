"""The gateway's side of the ledger: reserve before a call, and settle it whatever happens after.

While Postgres is away nothing is admitted, so nothing goes unmetered; what was under way keeps its end here
until it can be written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple
from uuid import uuid4

import structlog

from gateway.denials import Denial
from gateway.pacer import RefusalPacer, Untold
from gateway.recent import Recent
from store.database import Database
from store.keys import KeyGrant, find_key
from store.outages import is_database_away
from store.server_secret import ServerSecret
from store.spend import (
    CallEnd,
    NewCall,
    Refusal,
    RefusalKind,
    book_open_holds,
    record_refusal,
    reserve,
    settle_call,
)

log = structlog.get_logger()

QUERY_TIMEOUT_SEC = 5.0
GRANT_AGE_SEC = 5.0
# A call that does not fit while others hold the cap waits for them this long; each may settle far below.
PASSING_WAIT_SEC = 240.0
# How often it looks while no call of its own key settles: others may have, of another key or gateway.
PASSING_POLL_SEC = (1.0, 2.0, 4.0, 8.0)
MAX_WAITING_OF_KEY = 16
MAX_WAITING = 512
MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Of their bodies, which stay in memory."""
MAX_DISOWNED = 10_000
SETTLE_BACKOFF_SEC = (0.1, 0.5, 2.0, 5.0)
CLOSE_TIMEOUT_SEC = 3.0
_UNWRITABLE = "end_unwritable"


class Ledger:
    """Keys and calls of one gateway process. `gateway_id` names it across its restarts."""

    def __init__(self, db: Database, secret: ServerSecret, gateway_id: str) -> None:
        self._db = db
        self._secret = secret
        self.gateway_id = gateway_id
        self._settling: set[asyncio.Task[None]] = set()
        self._disowned: deque[_Disowned] = deque(maxlen=MAX_DISOWNED)
        self._disowning: asyncio.Task[None] | None = None
        self._grants: Recent[KeyGrant] = Recent(GRANT_AGE_SEC)
        self._waiting: dict[str, _Waiting] = {}
        self._n_waiting = self._waiting_bytes = 0
        self.pacer = RefusalPacer(self._tell_refusals)

    async def book_left_holds(self, started_at: datetime) -> None:
        """What an earlier process of this gateway left open is booked at its hold."""
        n_booked = await book_open_holds(self._db, self.gateway_id, started_at)
        if n_booked:
            log.warning("open holds of an earlier process booked", n_calls=n_booked)

    async def find_for_call(self, presented: str) -> KeyGrant:
        """As `find`, or what it said a moment ago: to reserve is to ask whether the key still lives."""
        grant = self._grants.get(presented)
        if grant is None:
            grant = await self.find(presented)
            self._grants.put(presented, grant)
        return grant

    async def find(self, presented: str) -> KeyGrant:
        """Raises `Denial`."""
        async with answering():
            grant = await find_key(self._db, self._secret, presented)
        if grant is None:
            raise Denial("no_key", "no such key")
        return grant

    async def reserve(self, call: NewCall, body_bytes: int = 0) -> None:
        """Raises `Denial`. A call that only has to wait for others of its key is kept waiting."""
        refusal = await self._try_to_reserve(call)
        if refusal is None:
            return
        if refusal.kind != "in_flight" and refusal.is_passing:
            refusal = await self._reserve_later(call, refusal, body_bytes)
        if refusal is not None:
            raise Denial.of_refusal(refusal.kind, refusal.message)

    async def refuse(self, call: NewCall, kind: RefusalKind) -> None:
        """Tell why a call was not admitted. Raises `Denial` when the ledger is away."""
        async with answering():
            await record_refusal(self._db, call, kind)

    async def _tell_refusals(self, untold: Untold) -> None:
        model = untold.grant.models[0]
        row = NewCall(
            call_id=uuid4().hex,
            key_id=untold.grant.key_id,
            gateway_id=self.gateway_id,
            protocol="",
            model=model.name,
            provider=model.provider,
            upstream_model=model.upstream_model,
            hold_nanos=0,
            price_version="",
            started_at=untold.last_at,
            adjustments=(f"{untold.count} calls refused without a row of their own",),
        )
        async with answering():
            await record_refusal(self._db, row, untold.kind, untold.last_at)

    async def _reserve_later(self, call: NewCall, refusal: Refusal, body_bytes: int) -> Refusal | None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + PASSING_WAIT_SEC
        n_idle = 0
        async with self._place(call, body_bytes) as waiting:
            while refusal.is_passing and loop.time() < deadline:
                is_woken = await _wait(waiting.settled, PASSING_POLL_SEC[n_idle])
                n_idle = 0 if is_woken else min(n_idle + 1, len(PASSING_POLL_SEC) - 1)
                again = await self._try_to_reserve(call)
                if again is None:
                    return None
                refusal = again
            return refusal

    @asynccontextmanager
    async def _place(self, call: NewCall, body_bytes: int) -> AsyncGenerator[_Waiting]:
        """A place to wait in. Where there is none, the call is refused for that, and not for a limit that
        others only hold: it may come again."""
        waiting = self._waiting.get(call.key_id) or _Waiting()
        is_full = self._n_waiting >= MAX_WAITING or self._waiting_bytes + body_bytes > MAX_WAITING_BYTES
        if is_full or waiting.n_calls >= MAX_WAITING_OF_KEY:
            await self.refuse(call, "in_flight")
            raise Denial("in_flight", "too many calls wait for others to settle")
        self._waiting[call.key_id] = waiting
        waiting.n_calls += 1
        self._n_waiting += 1
        self._waiting_bytes += body_bytes
        try:
            yield waiting
        finally:
            waiting.n_calls -= 1
            self._n_waiting -= 1
            self._waiting_bytes -= body_bytes
            if waiting.n_calls == 0:
                del self._waiting[call.key_id]

    async def _try_to_reserve(self, call: NewCall) -> Refusal | None:
        try:
            async with answering():
                return await reserve(self._db, call)
        except Denial:
            # It may have been written: whatever it was, nothing went upstream.
            self._disown(call)
            raise

    def _disown(self, call: NewCall) -> None:
        """End it as never asked, should it be in the ledger. One task does so for all, for any number of
        calls may come while Postgres is away; one that is dropped is booked at the next start."""
        self._disowned.append(_Disowned(call.call_id, call.key_id, call.started_at))
        if self._disowning is None or self._disowning.done():
            self._disowning = asyncio.create_task(self._end_disowned())
            self._settling.add(self._disowning)
            self._disowning.add_done_callback(self._settling.discard)

    async def _end_disowned(self) -> None:
        while self._disowned:
            call = self._disowned.popleft()
            end = CallEnd(status="failed", ended_at=call.started_at, error_kind="ledger")
            await self._settle_at_last(call, end)

    async def settle(self, call: NewCall, end: CallEnd) -> None:
        """Book the end of an admitted call. When Postgres is away this returns, and it is written once that
        is back; a caller that is cancelled changes nothing."""
        await asyncio.wait({self.settle_soon(call, end)}, timeout=QUERY_TIMEOUT_SEC)

    def settle_soon(self, call: NewCall, end: CallEnd) -> asyncio.Task[None]:
        """As `settle`, without waiting."""
        task = asyncio.create_task(self._settle_at_last(call, end))
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)
        return task

    async def close(self) -> None:
        """Wait shortly for what is being written; the rest is found open, and booked, at the next start."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_SEC):
                await self.pacer.close()
        if self._settling:
            _, late = await asyncio.wait(self._settling, timeout=CLOSE_TIMEOUT_SEC)
            for task in late:
                task.cancel()

    async def _settle_at_last(self, call: NewCall | _Disowned, end: CallEnd) -> None:
        """Write it once Postgres is there; an end that it does not take is booked at the hold."""
        n_tries = 0
        while True:
            try:
                async with answering():
                    await settle_call(self._db, call.call_id, end)
            except Denial:
                await asyncio.sleep(SETTLE_BACKOFF_SEC[min(n_tries, len(SETTLE_BACKOFF_SEC) - 1)])
                n_tries += 1
            except Exception as error:
                if end.error_kind == _UNWRITABLE:
                    raise
                log.error("a call's end cannot be written", call=call.call_id, error=type(error).__name__)
                end = CallEnd(status="held", ended_at=end.ended_at, error_kind=_UNWRITABLE)
            else:
                self._tell_settled(call.key_id)
                return

    def _tell_settled(self, key_id: str) -> None:
        waiting = self._waiting.get(key_id)
        if waiting is not None:
            waiting.settled.set()
            waiting.settled = asyncio.Event()


class _Disowned(NamedTuple):
    call_id: str
    key_id: str
    started_at: datetime


@dataclass
class _Waiting:
    """Calls of one key that wait until another settles; `settled` is of the next one that does."""

    n_calls: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def answering() -> AsyncGenerator[None]:
    """Turns a database that does not answer into a refusal that says to come again."""
    try:
        async with asyncio.timeout(QUERY_TIMEOUT_SEC):
            yield
    except Exception as error:
        if not is_database_away(error):
            raise
        log.warning("the ledger does not answer", error=type(error).__name__)
        raise Denial("unavailable", "the gateway's ledger does not answer; try again") from None


async def _wait(event: asyncio.Event, timeout_sec: float) -> bool:
    """Whether it came in time."""
    try:
        async with asyncio.timeout(timeout_sec):
            return await event.wait()
    except TimeoutError:
        return False
