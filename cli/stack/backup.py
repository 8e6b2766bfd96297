"""`evolve backup`: the whole of one home as one archive, taken while nothing writes to it.

The archive is a gzipped tar by GNU tar, which keeps holes, owners and the attributes of overlays. Its
first member says what it is (`Manifest`); the others are the home's own files, by their path below it.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from cli.stack import detached
from cli.stack.child import Child
from cli.stack.errors import BackupError, NotPossibleHere
from cli.stack.home import Home
from cli.stack.identity import SUPERVISOR, ProcessRecord
from cli.stack.settings import PATH_VARIABLES, PRODUCTION_ONLY, environment_for_elsewhere
from cli.stack.stopping import stop_stack
from cli.stack.supervisor import DOWN_ORDER

MANIFEST = "evolve-backup.json"
FORMAT = 1
# Worth nothing later, or a living box's: whose disks are large, and go on being written.
LEFT_OUT = (
    "run",
    "logs",
    "pg.new",
    "state/boxes",
    "state/builds",
    "state/trash",
    "state/locks",
    "state/docker/boxes",
)
# Overlays keep what a layer hides in attributes, which tar leaves out by itself.
ATTRIBUTES = ("--xattrs", "--xattrs-include=*")
# What may be kept outside of the home, and is then not in its archive.
KEPT_ELSEWHERE = ("EVOLVE_BLOB_URL", "EVOLVE_SECRET_KEY", "EVOLVE_STATE_DIR", "EVOLVE_BUNDLES_DIR")
Told = Callable[[str], None]


class Manifest(BaseModel):
    """What an archive says of itself."""

    model_config = ConfigDict(frozen=True)

    format: int
    release: str
    home: str
    made_at: datetime


def back_up(home: Home, target: Path, told: Told) -> None:
    """Write `target`, new and of mode 0600; a running stack is stopped for it and started again as it was.

    Raises `BackupError` that names `target` when it exists already or cannot be written.
    """
    _check(home, target)
    tar = gnu_tar()
    environment = _environment_of_supervisor(home)
    was_running = is_running(home)
    try:
        if was_running:
            stop_stack(told)
        home.run.mkdir(mode=0o700, exist_ok=True)
        with home.lock(), _draft(target) as draft:
            _write(tar, home, target, draft)
    finally:
        if was_running:
            detached.start(told, environment)
    told(f"{target}: {target.stat().st_size / 1e6:.1f} MB; it holds the keys of {home.path}: keep it as them")
    for name in KEPT_ELSEWHERE:
        if environment.get(name):
            told(f"not in it: what {name} names")


def is_running(home: Home) -> bool:
    """Whether a supervisor or any of its children lives."""
    return home.supervisor_lives() or any(Child.recorded(home, name) for name, _ in DOWN_ORDER)


def gnu_tar() -> str:
    """The program; raises `NotPossibleHere`."""
    try:
        done = subprocess.run(("tar", "--version"), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotPossibleHere("tar is not installed here, and backups are made by GNU tar") from None
    if "GNU tar" not in done.stdout:
        raise NotPossibleHere("the tar of this machine is not GNU tar, which backups are made by")
    return "tar"


def _check(home: Home, target: Path) -> None:
    for name in PRODUCTION_ONLY:
        if os.environ.get(name):
            raise BackupError(f"{name} is set: a backup is of an embedded stack; save yours by its own tools")
    if not home.pg_data.exists():
        raise BackupError(f"{home.path} holds no installation: nothing to save")
    if os.path.lexists(target):
        raise BackupError(f"{target} exists already, and is not overwritten", code="exists")
    folder = target.absolute().parent
    if not folder.is_dir():
        raise BackupError(f"{target}: {folder} is no directory")
    if folder.resolve().is_relative_to(home.path.resolve()):
        raise BackupError(f"{target} is inside of {home.path}, which it would hold")


def _environment_of_supervisor(home: Home) -> Mapping[str, str]:
    """What the stack was started with, so that it is started again as it was; else what we have."""
    record = ProcessRecord.read(home.process_record(SUPERVISOR)) if home.supervisor_lives() else None
    if record is None:
        return environment_for_elsewhere()
    process = Path(f"/proc/{record.identity.pid}")
    try:
        pairs = os.fsdecode((process / "environ").read_bytes()).split("\0")
        folder = (process / "cwd").readlink()
    except OSError:
        return environment_for_elsewhere()
    found = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    return found | {name: str(folder / found[name]) for name in PATH_VARIABLES if found.get(name)}


@contextmanager
def _draft(target: Path) -> Generator[Path]:
    """A private file beside `target` that takes its place at the end; gone when that is not reached."""
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        yield draft
        if os.path.lexists(target):
            raise BackupError(f"{target} exists already, and is not overwritten", code="exists")
        draft.rename(target)
    except OSError as error:
        raise BackupError(f"{target}: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)


def _write(tar: str, home: Home, target: Path, draft: Path) -> None:
    manifest = Manifest(
        format=FORMAT, release=version("evolve-evals"), home=str(home.path), made_at=datetime.now(UTC)
    )
    with tempfile.TemporaryDirectory(prefix="evolve-backup-") as scratch, draft.open("wb") as archive:
        Path(scratch, MANIFEST).write_text(json.dumps(manifest.model_dump(mode="json")), encoding="utf-8")
        command = (
            *(tar, "--create", "--gzip", "--sparse", "--numeric-owner", *ATTRIBUTES),
            # Of the patterns only whole paths from the top match.
            *("--anchored", "--no-wildcards", "--warning=no-file-ignored"),
            *(f"--exclude=./{name}" for name in LEFT_OUT),
            *(f"--directory={scratch}", MANIFEST, f"--directory={home.path.resolve()}", "."),
        )
        done = subprocess.run(command, stdout=archive, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise BackupError(f"{target} was not written: {done.stderr.strip()[-500:] or done.returncode}")
        archive.flush()
        os.fsync(archive.fileno())
