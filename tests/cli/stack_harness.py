"""A stack of a test's own: a temporary home, free ports, the real command in its own process."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from activities.sandboxes.local import LocalProvider
from cli.stack.home import Home
from cli.stack.status import ProcessStatus, stack_status

SOURCE = Path(__file__).parents[2]
PORT_VARIABLES = ("EVOLVE_API_PORT", "EVOLVE_GATEWAY_PORT", "EVOLVE_TEMPORAL_PORT", "EVOLVE_TEMPORAL_UI_PORT")
CHILDREN = ("postgres", "temporal", "gateway", "api", "worker")
# A start is a few seconds on an idle machine; tests of other rooms may hold both cores.
UP_TIMEOUT_SEC = 200.0


def free_ports(count: int) -> list[int]:
    """Ports that were free together a moment ago."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def wait_until(condition: Callable[[], Any], what: str, timeout_sec: float = UP_TIMEOUT_SEC) -> Any:
    """Poll for a true value and return it."""
    deadline = time.monotonic() + timeout_sec
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_sec:.0f} s: {what}"
        time.sleep(0.1)


@dataclass
class Stack:
    """`evolve` on one home, as `user` where it is not None, on the interpreter `python`."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    user: int | None = None
    python: str = sys.executable

    def __post_init__(self) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("EVOLVE_")}
        ports = {name: str(port) for name, port in zip(PORT_VARIABLES, free_ports(4), strict=True)}
        self.environment = {**clean, "EVOLVE_HOME": str(self.home), **ports, **self.environment}

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.environment['EVOLVE_API_PORT']}"

    def command(self, *words: str) -> tuple[str, ...]:
        return (self.python, "-P", "-m", "cli.main", *words)

    def run(
        self, *words: str, timeout_sec: float = UP_TIMEOUT_SEC, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*words),
            env=self.environment,
            cwd="/",
            text=True,
            input=stdin,
            capture_output=True,
            timeout=timeout_sec,
            check=False,
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else (),
        )

    def up(self) -> str:
        """Start it detached; what it said."""
        done = self.run("up", "--detach")
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()
        return done.stdout

    def down(self) -> None:
        done = self.run("down")
        assert done.returncode == 0, done.stdout + done.stderr + self.logs()

    def status(self) -> dict[str, ProcessStatus]:
        """By process name; what `evolve status` finds, without the cost of a process."""
        found = asyncio.run(stack_status(Home(self.home)))
        return {process.name: process for process in found.processes}

    def is_healthy(self) -> bool:
        """Whether every process is."""
        return all(process.health == "healthy" for process in self.status().values())

    def await_healthy(self) -> None:
        """Wait until every process is."""
        wait_until(self.is_healthy, "all are healthy")

    def pids(self) -> dict[str, int]:
        """Of the children that live, by their records."""
        found = {name: self.record(name) for name in CHILDREN}
        return {name: pid for name, pid in found.items() if pid and is_alive(pid)}

    def record(self, name: str) -> int | None:
        try:
            return int(json.loads((self.home / "run" / f"{name}.json").read_text())["pid"])
        except (FileNotFoundError, ValueError):
            return None

    def logs(self) -> str:
        """The end of every log, for a failed test."""
        return "\n".join(
            f"== {log}\n{log.read_text(errors='replace')[-1500:]}"
            for log in sorted(self.home.glob("logs/*.log"))
        )

    def kill(self, name: str) -> int:
        """SIGKILL a process of it; its pid."""
        pid = self.record(name)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), f"{name} is gone", 10)
        return pid

    def destroy(self) -> None:
        """Stop what runs, whatever state it is in, and remove the home."""
        self.run("down")
        for name in ("supervisor", *CHILDREN):
            pid = self.record(name)
            assert pid is None or not is_alive(pid), f"{name} survived `evolve down`"
        asyncio.run(self._end_boxes())
        shutil.rmtree(self.home.parent, ignore_errors=True)

    async def _end_boxes(self) -> None:
        """`down` lets boxes go on for the next `up`; here there is none."""
        provider = LocalProvider(self.home / "state", self.home / "run" / "gateway" / "gateway.sock")
        for box in sorted((self.home / "state" / "boxes").glob("*")):
            await provider.destroy(box.name)


def is_alive(pid: int) -> bool:
    """Whether a process has this pid and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


@contextmanager
def temporary_stack(user: int | None = None, **options: Any) -> Iterator[Stack]:
    """A home below a directory that only its owner can enter, as root's `~/.evolve` is."""
    parent = Path("/tmp") / f"evolve-stack-{uuid4().hex[:8]}"
    parent.mkdir(mode=0o700)
    if user is not None:
        os.chown(parent, user, user)
    stack = Stack(parent / "home", user=user, **options)
    try:
        yield stack
    finally:
        stack.destroy()


def normal_user() -> dict[str, Any]:
    """Options of a stack that runs as `nobody` when we are root, else as we do."""
    if os.geteuid() != 0:
        return {}
    uid = pwd.getpwnam("nobody").pw_uid
    packages = sysconfig.get_path("purelib")
    environment = {
        "HOME": "/nonexistent",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{SOURCE}:{packages}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {"user": uid, "python": _python_for(uid), "environment": environment}


def _python_for(uid: int) -> str:
    """An interpreter of our version that this user may run: ours may be below root's home."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/python{version}"):
        try:
            subprocess.run((python, "-c", ""), cwd="/", user=uid, group=uid, extra_groups=(), check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    raise AssertionError(f"no Python {version} that a normal user may run: install one in /usr/bin")
