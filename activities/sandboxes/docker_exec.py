"""A short command in a container, through the engine's exec."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiodocker.containers import DockerContainer
from aiodocker.execs import Exec
from aiodocker.stream import Stream

from activities.sandboxes.base import RunResult
from domain.errors import ExecChdirFailure, ProviderUnreachable, SandboxDeath, TaskError

CANNOT_EXECUTE = 126
KILLED = 137
STDOUT, STDERR = 1, 2
STDIN_POLL_SEC = 0.1
START_POLL_SEC = 0.02
KILL_TIMEOUT_SEC = 60.0


@dataclass(frozen=True)
class Command:
    argv: Sequence[str]
    user: str
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    stdin: bytes | None = None


async def run_command(container: DockerContainer, command: Command, timeout_sec: float) -> RunResult:
    """Run and wait. Raises `TimeoutError` after killing it, `ExecChdirFailure`, `SandboxDeath`."""
    execution = await container.exec(
        command.argv,
        stdin=command.stdin is not None,
        user=command.user,
        environment=command.env,
        workdir=command.cwd,
    )
    try:
        async with asyncio.timeout(timeout_sec):
            stdout, stderr = await _transfer(execution, command.stdin)
    except TimeoutError as error:
        await _kill(container, execution)
        raise TimeoutError(f"{command.argv[0]} did not end within {timeout_sec:g} s") from error
    details = await execution.inspect()
    exit_code = details["ExitCode"]
    if exit_code == KILLED and not (await container.show())["State"]["Running"]:
        raise SandboxDeath(f"the box died while it ran {command.argv[0]}")
    if exit_code == CANNOT_EXECUTE and not details["Pid"]:
        _raise_refusal(command, (stdout + stderr).decode(errors="replace"))
    return RunResult(exit_code, stdout, stderr)


async def _transfer(execution: Exec, stdin: bytes | None) -> tuple[bytes, bytes]:
    output: dict[int, bytearray] = defaultdict(bytearray)
    async with execution.start(detach=False) as stream:
        reading = asyncio.create_task(_read(stream, output))
        feeding = asyncio.create_task(_feed(stream, stdin)) if stdin is not None else None
        try:
            # The engine does not end the stream of a command that ended before it read all of its stdin.
            while feeding is not None and not (reading.done() or feeding.done()):
                await asyncio.wait((reading, feeding), timeout=STDIN_POLL_SEC, return_when="FIRST_COMPLETED")
                if not (await execution.inspect())["Running"]:
                    await asyncio.wait((reading,), timeout=STDIN_POLL_SEC)
                    break
            else:
                await reading
        finally:
            await _cancel(reading, feeding)
    return bytes(output[STDOUT]), bytes(output[STDERR])


async def _read(stream: Stream, output: dict[int, bytearray]) -> None:
    while message := await stream.read_out():
        output[message.stream] += message.data


async def _cancel(*tasks: asyncio.Task[None] | None) -> None:
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def _feed(stream: Stream, stdin: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # the command ended without reading all of it
        await stream.write_in(stdin)
        # aiodocker can only close both directions; the command's end of file is a half close.
        response = stream._resp
        transport = response.connection.transport if response and response.connection else None
        if transport is not None:
            transport.write_eof()


async def _kill(container: DockerContainer, execution: Exec) -> None:
    """The engine cannot kill an exec, so its session is killed from inside, by the pid it has there.

    Raises `ProviderUnreachable` when that cannot be done within `KILL_TIMEOUT_SEC`.
    """
    try:
        async with asyncio.timeout(KILL_TIMEOUT_SEC):
            pid = await _started(execution)
            if pid is not None:
                killer = await container.exec(["/bin/sh", "-c", f"kill -9 -{pid} {pid}"], user="0")
                await _transfer(killer, None)
    except TimeoutError as error:
        raise ProviderUnreachable("the Docker engine did not end a command that took too long") from error


async def _started(execution: Exec) -> str | None:
    """The pid inside the box of a command once it runs there, None when it is over.

    A slow engine says "running" while the process is still its own starter, outside of the box.
    """
    while (details := await execution.inspect())["Running"]:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if len(pids := _namespace_pids(details["Pid"])) > 1:
                return pids[-1]
        await asyncio.sleep(START_POLL_SEC)
    return None


def _namespace_pids(pid: int) -> list[str]:
    """The pids of a process from this machine's namespace down to its own (proc(5), status); none for 0."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1:] for line in status if line.startswith("NSpid:"))


def _raise_refusal(command: Command, text: str) -> None:
    """What the engine says on the command's own output when it could not start it."""
    if "chdir to cwd" in text or "Cwd must be" in text:
        raise ExecChdirFailure(f"the working directory {command.cwd} does not exist in the box")
    if "unable to find user" in text or "unable to find group" in text:
        raise TaskError(f"there is no user {command.user} in the task's image", param="user")
    if "stopped state" in text or "is not running" in text:
        raise SandboxDeath(f"the box was gone when {command.argv[0]} was to start")
