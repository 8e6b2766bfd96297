"""One running child of the stack: started or adopted, watched by pidfd, stopped by a ladder of signals."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.stack.errors import StackError
from cli.stack.home import Home
from cli.stack.identity import ProcessIdentity, ProcessRecord

TOLD_CHARACTERS = 600  # of a failed program's output, in an error
SUCCESS = "exited with 0"
StopLadder = tuple[tuple[signal.Signals, float], ...]


@dataclass(frozen=True)
class ChildSpec:
    """How to start `name`, how to know that it is ready, and how to stop it.

    `is_ready` gets the pid. `stop_ladder` is (signal, seconds until the next); SIGKILL comes after the last.
    `uid` is the unprivileged one to drop to, `prepare` runs before every start.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    is_ready: Callable[[int], Awaitable[bool]]
    stop_ladder: StopLadder
    uid: int | None = None
    prepare: Callable[[], None] | None = None

    @property
    def digest(self) -> str:
        """Differs when a child started from this would differ."""
        parts = json.dumps([self.argv, dict(sorted(self.env.items())), str(self.cwd), self.uid])
        return hashlib.sha256(parts.encode()).hexdigest()


class Child:
    """A living child. `adopted` ones were started by a supervisor that is gone: init is their parent."""

    def __init__(self, identity: ProcessIdentity, popen: subprocess.Popen[bytes] | None) -> None:
        self.identity = identity
        self._popen = popen
        self._pidfd = os.pidfd_open(identity.pid)
        self._exit: asyncio.Task[str] | None = None

    @classmethod
    def spawn(cls, spec: ChildSpec, home: Home) -> Child:
        """Start it in a session of its own, its output appended to its log."""
        if spec.prepare is not None:
            spec.prepare()
        record = os.open(home.process_record(spec.name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        digest = spec.digest

        def write_record() -> None:
            me = ProcessIdentity.of(os.getpid())
            if me is not None:
                os.write(record, ProcessRecord(me, digest).to_json().encode())

        try:
            with open(home.log(spec.name), "ab") as log:
                popen = subprocess.Popen(
                    spec.argv,
                    env=dict(spec.env),
                    cwd=spec.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    # Written by the child, so that a supervisor killed here leaves no unknown process.
                    # Safe because the supervisor has no other thread.
                    preexec_fn=write_record,
                    user=spec.uid,
                    group=spec.uid,
                    extra_groups=None if spec.uid is None else (),
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise StackError(f"{spec.name} cannot be started: {error}") from error
        finally:
            os.close(record)
        started = ProcessRecord.read(home.process_record(spec.name))
        return cls(started.identity if started else ProcessIdentity(popen.pid, 0, ""), popen)

    @classmethod
    def recorded(cls, home: Home, name: str) -> tuple[Child, str] | None:
        """The living child of an earlier supervisor with its digest, or None."""
        record = ProcessRecord.read(home.process_record(name))
        if record is None:
            return None
        try:
            child = cls(record.identity, None)
        except ProcessLookupError:
            return None
        # Between reading and opening, the pid could have passed to another process.
        return (child, record.digest) if record.identity.is_alive() else None

    @property
    def pid(self) -> int:
        return self.identity.pid

    async def exited(self) -> str:
        """Wait for its end; says how it ended. Any number of tasks may wait."""
        if self._exit is None:
            self._exit = asyncio.create_task(self._wait())
        return await asyncio.shield(self._exit)

    async def _wait(self) -> str:
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        if self._popen is None:
            return "ended"
        code = self._popen.wait()
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def send(self, number: signal.Signals) -> None:
        """Signal exactly this process; one that is over is left alone."""
        if self._pidfd < 0:
            return
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return

    async def stop(self, ladder: StopLadder) -> str:
        """Ask in rising tones, then kill; returns when it is over."""
        for number, patience_sec in ladder:
            self.send(number)
            try:
                return await asyncio.wait_for(self.exited(), patience_sec)
            except TimeoutError:
                continue
        self.send(signal.SIGKILL)
        return await self.exited()


async def run_tool(name: str, argv: Sequence[str], env: Mapping[str, str], timeout_sec: float) -> None:
    """Run a short command to its end. Raises `StackError` with the end of what it said when it fails."""
    with tempfile.TemporaryFile() as output:
        tool = _start_tool(argv, env, output.fileno())
        try:
            end = await asyncio.wait_for(tool.exited(), timeout_sec)
        except TimeoutError:
            end = f"took longer than {timeout_sec:.0f} s"
        finally:
            tool.send(signal.SIGKILL)  # it is not left behind when we are cancelled
        if end == SUCCESS:
            return
        output.seek(0)
        said = output.read().decode(errors="replace").strip()[-TOLD_CHARACTERS:]
        raise StackError(f"{name} {end}: {said}" if said else f"{name} {end}")


def _start_tool(argv: Sequence[str], env: Mapping[str, str], output: int) -> Child:
    # Not asyncio's subprocesses: they would give the supervisor a thread (see `spawn`).
    popen = subprocess.Popen(
        argv, env=dict(env), cwd="/", stdin=subprocess.DEVNULL, stdout=output, stderr=output
    )
    return Child(ProcessIdentity(popen.pid, 0, ""), popen)
