"""The translator as a child process: started when it is first needed, and anew when it has grown or died."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from gateway.denials import Denial
from gateway.translator import READY, SILENCE

log = structlog.get_logger()

# LiteLLM grows over thousands of calls (facts/gateway.md 9.37); it begins with 190 MB.
MAX_RSS_BYTES = 1024 * 1024 * 1024
START_TIMEOUT_SEC = 60.0
STOP_TIMEOUT_SEC = 3.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class TranslatorProcess:
    """One child. `socket` is where it answers."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="evolve-translator-")
        self.socket = Path(self._directory.name) / "translator.sock"
        self.n_open = 0
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Raises `Denial` when it does not come up."""
        # Nothing of our environment: it needs no secret, and LiteLLM reads many variables.
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": self._directory.name, **SILENCE}
        argv = (sys.executable, "-P", "-m", "gateway.translator", str(self.socket))
        self._child = await asyncio.create_subprocess_exec(
            *argv, env=environment, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert self._child.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_SEC):
                line = await self._child.stdout.readline()
        except TimeoutError:
            line = b""
        if line != READY.encode():
            await self.stop()
            raise Denial("unavailable", "the translator does not start")
        log.info("translator started", pid=self._child.pid)

    @property
    def is_fit(self) -> bool:
        """Whether it lives and has not grown too large."""
        return (
            self._child is not None and self._child.returncode is None and self._rss_bytes() < MAX_RSS_BYTES
        )

    async def stop(self) -> None:
        child = self._child
        if child is not None and child.returncode is None:
            child.terminate()
            try:
                await asyncio.wait_for(child.wait(), STOP_TIMEOUT_SEC)
            except TimeoutError:
                child.kill()
                await child.wait()
        self._directory.cleanup()

    def _rss_bytes(self) -> int:
        assert self._child is not None
        try:
            resident = Path(f"/proc/{self._child.pid}/statm").read_text().split()[1]
        except OSError:
            return 0
        return int(resident) * _PAGE_BYTES


class TranslatorPool:
    """The fit process; one that is not fit any more ends when its last call has."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._process: TranslatorProcess | None = None
        self._retired: set[TranslatorProcess] = set()

    @asynccontextmanager
    async def borrowed(self) -> AsyncGenerator[TranslatorProcess]:
        """A process for one call. Raises `Denial` when none can be had."""
        process = await self._fit()
        process.n_open += 1
        try:
            yield process
        finally:
            process.n_open -= 1
            if process in self._retired and process.n_open == 0:
                self._retired.discard(process)
                await process.stop()

    async def close(self) -> None:
        for process in (*self._retired, *((self._process,) if self._process else ())):
            await process.stop()

    async def _fit(self) -> TranslatorProcess:
        async with self._lock:
            if self._process is not None and not self._process.is_fit:
                await self._retire(self._process)
            if self._process is None:
                process = TranslatorProcess()
                await process.start()
                self._process = process
            return self._process

    async def _retire(self, process: TranslatorProcess) -> None:
        log.warning("translator retired", n_open=process.n_open)
        self._process = None
        if process.n_open:
            self._retired.add(process)
        else:
            await process.stop()
