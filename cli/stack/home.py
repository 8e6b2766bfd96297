"""The layout of `EVOLVE_HOME`: one directory, mode 0700, holds everything of one stack.

credentials.json   api key and URL of this stack, for the CLI (0600)
pgpass             password of the embedded Postgres (0600)
secret.key         the server secret: virtual keys and provider keys depend on it (0600)
host_id            this host's name in leases and queues
pg/                Postgres data and socket; of an unprivileged uid when we are root
temporal/          Temporal's SQLite file with its -wal and -shm
blobs/             packages, streams, archives
state/             the worker's boxes and build contexts
logs/              one file a process, rotated
run/               locks, process records, sockets; worth nothing when nothing runs
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import secrets
import stat
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from cli.credentials import CREDENTIALS_FILE, home_directory
from cli.stack.errors import AlreadyRunning, NotPossibleHere

# A unix socket's address holds 107 bytes; the longest of ours below home is `/run/gateway/gateway.sock`.
MAX_HOME_PATH_BYTES = 75


@dataclass(frozen=True)
class Home:
    """Paths below one `EVOLVE_HOME`. `path` is absolute."""

    path: Path

    @classmethod
    def from_environment(cls) -> Home:
        """The one that `EVOLVE_HOME` names."""
        return cls(home_directory().absolute())

    @property
    def credentials(self) -> Path:
        return self.path / CREDENTIALS_FILE

    @property
    def pgpass(self) -> Path:
        return self.path / "pgpass"

    @property
    def pg_data(self) -> Path:
        return self.path / "pg"

    @property
    def temporal_db(self) -> Path:
        return self.path / "temporal" / "temporal.db"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def stack_record(self) -> Path:
        """What the last supervisor said of itself and its children (see `status`)."""
        return self.run / "stack.json"

    def process_record(self, name: str) -> Path:
        """Who the process `name` is (see `identity`)."""
        return self.run / f"{name}.json"

    def log(self, name: str) -> Path:
        return self.path / "logs" / f"{name}.log"

    @cached_property
    def short_path(self) -> Path:
        """The home by a name short enough for socket addresses: itself, or a link to it in `/tmp`."""
        if len(os.fsencode(self.path)) <= MAX_HOME_PATH_BYTES:
            return self.path
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"evolve-{os.geteuid()}-{digest}"

    @property
    def gateway_socket(self) -> Path:
        return self.short_path / "run" / "gateway" / "gateway.sock"

    @property
    def worker_socket(self) -> Path:
        return self.short_path / "run" / "worker.sock"

    @property
    def database_url(self) -> str:
        """Of the embedded Postgres. The password stays in `pgpass`: no environment or argv holds it."""
        host, passfile = quote(str(self.short_path / "pg")), quote(str(self.pgpass))
        return f"postgresql://evolve@/evolve?host={host}&passfile={passfile}"

    def make(self) -> None:
        """Create what is missing. Raises `NotPossibleHere` for a home that others could write to."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._check_owner()
        for directory in ("temporal", "logs", "state", "run", "run/gateway"):
            (self.path / directory).mkdir(exist_ok=True, mode=0o700)
        if self.short_path != self.path:
            _link(self.short_path, self.path)

    def _check_owner(self) -> None:
        info = self.path.stat()
        if info.st_uid != os.geteuid() and os.geteuid() != 0:
            raise NotPossibleHere(
                f"{self.path} belongs to uid {info.st_uid}: set EVOLVE_HOME to a directory of yours"
            )
        if stat.S_IMODE(info.st_mode) & 0o022:
            raise NotPossibleHere(f"{self.path} can be written by others: `chmod 700` it, or set EVOLVE_HOME")

    def host_id(self) -> str:
        """Made at first use and kept: the machine may be renamed while boxes are leased under it."""
        path = self.path / "host_id"
        if not path.exists():
            node = "".join(c if c.isalnum() else "-" for c in platform.node().lower())[:32] or "host"
            write_private(path, f"{node}-{secrets.token_hex(3)}\n")
        return path.read_text(encoding="utf-8").strip()

    @contextmanager
    def lock(self) -> Generator[None]:
        """Held by the one supervisor for its life; the kernel frees it however that ends."""
        with open(self.run / "supervisor.lock", "a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AlreadyRunning(
                    f"the stack of {self.path} is already running: see `evolve status`"
                ) from None
            yield

    def supervisor_lives(self) -> bool:
        """Whether the lock is held."""
        try:
            with self.lock():
                return False
        except AlreadyRunning:
            return True
        except FileNotFoundError:
            return False


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 in one step: a reader sees the old or the new whole."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    temporary.replace(path)


def _link(link: Path, target: Path) -> None:
    try:
        link.symlink_to(target)
    except FileExistsError:
        # In a shared temporary directory the name could be someone else's.
        if link.lstat().st_uid != os.geteuid() or not link.is_symlink() or link.readlink() != target:
            raise NotPossibleHere(
                f"{link} is in the way: remove it, or choose a shorter EVOLVE_HOME"
            ) from None
