"""The gateway's side of the ledger: reserve before a call, and settle it whatever happens after.

While Postgres is away nothing is admitted, so nothing goes unmetered; what was under way keeps its end here
until it can be written.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime

import structlog

from gateway.denials import Denial
from gateway.recent import Recent
from store.database import Database
from store.keys import KeyGrant, find_key
from store.outages import is_database_away
from store.server_secret import ServerSecret
from store.spend import (
    CallEnd,
    NewCall,
    Refusal,
    UnservedKind,
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
PASSING_POLL_SEC = 1.0
MAX_WAITING = 64
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
        self._grants: Recent[KeyGrant] = Recent(GRANT_AGE_SEC)
        self._n_waiting = 0
        self._settled: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

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

    async def reserve(self, call: NewCall) -> None:
        """Raises `Denial`. A call that only has to wait for others of its key is kept waiting."""
        refusal = await self._try_to_reserve(call)
        if refusal is None:
            return
        if refusal.kind != "in_flight" and refusal.is_passing:
            refusal = await self._reserve_later(call, refusal)
        if refusal is not None:
            raise Denial.of_refusal(refusal.kind, refusal.message)

    async def refuse(self, call: NewCall, kind: UnservedKind) -> None:
        """Tell that nobody could answer a call. Raises `Denial` when the ledger is away."""
        async with answering():
            await record_refusal(self._db, call, kind)

    async def _reserve_later(self, call: NewCall, refusal: Refusal) -> Refusal | None:
        if self._n_waiting >= MAX_WAITING:
            raise Denial("in_flight", "too many calls wait for others to settle")
        deadline = asyncio.get_running_loop().time() + PASSING_WAIT_SEC
        self._n_waiting += 1
        try:
            while refusal.is_passing and asyncio.get_running_loop().time() < deadline:
                await _wait(self._settled[call.key_id], PASSING_POLL_SEC)
                again = await self._try_to_reserve(call)
                if again is None:
                    return None
                refusal = again
            return refusal
        finally:
            self._n_waiting -= 1

    async def _try_to_reserve(self, call: NewCall) -> Refusal | None:
        try:
            async with answering():
                return await reserve(self._db, call)
        except Denial:
            # It may have been written: whatever it was, nothing went upstream.
            never_asked = CallEnd(status="failed", ended_at=call.started_at, error_kind="ledger")
            self.settle_soon(call, never_asked)
            raise

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
        if self._settling:
            _, late = await asyncio.wait(self._settling, timeout=CLOSE_TIMEOUT_SEC)
            for task in late:
                task.cancel()

    async def _settle_at_last(self, call: NewCall, end: CallEnd) -> None:
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
        waited_for = self._settled.pop(key_id, None)
        if waited_for is not None:
            waited_for.set()


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


async def _wait(event: asyncio.Event, timeout_sec: float) -> None:
    try:
        async with asyncio.timeout(timeout_sec):
            await event.wait()
    except TimeoutError:
        return
