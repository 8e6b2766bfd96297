"""Keeps one child alive: adopts or starts it, watches it, starts it again with growing waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from cli.stack.child import Child, ChildSpec
from cli.stack.errors import StackError
from cli.stack.home import Home
from cli.stack.logs import tail

READY_TIMEOUT_SEC = 120.0
READY_POLL_SEC = 0.05
FIRST_BACK_OFF_SEC = 0.2
MAX_BACK_OFF_SEC = 10.0
# A child that lived this long failed for a new reason: its waits begin anew.
STEADY_SEC = 60.0
# At a start of the stack: an old server's last connections may still have to end.
FIRST_TRIES = 4


class Keeper:
    """One child's keeper. `told` gets a line for people whenever something happened."""

    def __init__(self, spec: ChildSpec, home: Home, told: Callable[[str], None]) -> None:
        self.spec = spec
        self.child: Child | None = None
        self.restarts = 0
        self._home = home
        self._told = told
        self._is_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def adopt(self) -> bool:
        """Take over a living child of an earlier supervisor; one that would be started differently, or
        does not answer, is stopped. True when it was taken over."""
        found = Child.recorded(self._home, self.spec.name)
        if found is None:
            return False
        child, digest = found
        why = "which was set up differently"
        if digest == self.spec.digest:
            if await self.spec.is_ready(child.pid):
                self.child = child
                return True
            why = "which does not answer"
        self._told(f"{self.spec.name}: stopping pid {child.pid} of an earlier start, {why}")
        await child.stop(self.spec.stop_ladder)
        return False

    async def start(self) -> None:
        """Start keeping; returns when the child is ready. Raises `StackError` with its log's end."""
        self._task = asyncio.create_task(self._keep())
        ready = asyncio.create_task(self._is_ready.wait())
        await asyncio.wait(
            {self._task, ready}, timeout=READY_TIMEOUT_SEC, return_when=asyncio.FIRST_COMPLETED
        )
        ready.cancel()
        if self._task.done():
            await self._task  # raises what ended it
        if not self._is_ready.is_set():
            raise self._failure(f"is not ready after {READY_TIMEOUT_SEC:.0f} s")

    async def stop(self) -> bool:
        """Stop the child for good; False when there was none."""
        self._stopping.set()
        child = self.child
        if child is not None:
            await child.stop(self.spec.stop_ladder)
        if self._task is not None:
            await asyncio.wait({self._task})
        return child is not None

    async def _keep(self) -> None:
        back_off_sec = FIRST_BACK_OFF_SEC
        while not self._stopping.is_set():
            began = time.monotonic()
            end = await self._live_once()
            if self._stopping.is_set():
                return
            if time.monotonic() - began > STEADY_SEC:
                back_off_sec = FIRST_BACK_OFF_SEC
            self._count_restart(end, back_off_sec)
            await self._pause(back_off_sec)
            back_off_sec = min(2 * back_off_sec, MAX_BACK_OFF_SEC)

    async def _live_once(self) -> str:
        """From the start of a child, or of its being taken over, to its end; says how that was."""
        try:
            self.child = self.child or Child.spawn(self.spec, self._home)
        except StackError as error:
            return error.message
        try:
            return await self._live(self.child)
        finally:
            self.child = None

    async def _live(self, child: Child) -> str:
        ready = asyncio.create_task(self._await_ready(child))
        try:
            return await child.exited()
        finally:
            ready.cancel()

    async def _await_ready(self, child: Child) -> None:
        while not await self.spec.is_ready(child.pid):
            await self._pause(READY_POLL_SEC)
        self._is_ready.set()

    def _count_restart(self, end: str, back_off_sec: float) -> None:
        self.restarts += 1
        if not self._is_ready.is_set() and self.restarts >= FIRST_TRIES:
            raise self._failure(end)
        self._told(f"{self.spec.name}: {end}; starting again in {back_off_sec:.1f} s")

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _failure(self, what: str) -> StackError:
        log = self._home.log(self.spec.name)
        return StackError(f"{self.spec.name} {what}; the end of {log}: {tail(log)}")
