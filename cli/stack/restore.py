"""`evolve restore`: a home of an archive that `evolve backup` wrote; what was there is moved aside."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from cli.stack.backup import ATTRIBUTES, FORMAT, MANIFEST, Manifest, Told, gnu_tar, is_running
from cli.stack.errors import AlreadyRunning, BackupError
from cli.stack.home import Home


def restore(home: Home, archive: Path, told: Told) -> None:
    """Put the archive's home in the place of `home`. All or nothing.

    Raises `AlreadyRunning`, or `BackupError` that names an archive that is not ours, broken or unsafe.
    """
    if is_running(home):
        raise AlreadyRunning(f"the stack of {home.path} is running: `evolve down` first")
    tar = gnu_tar()
    manifest = check_archive(archive)
    place = home.path.resolve()
    lock = home.lock() if home.run.is_dir() else nullcontext()
    with lock, _draft(place) as draft:
        _unpack(tar, archive, draft)
        aside = _swap(draft, place)
    if aside is not None:
        told(f"what was there is {aside}: delete it when you need it no more")
    told(f"{place} is of {manifest.made_at:%Y-%m-%d %H:%M:%S} UTC, release {manifest.release}")
    if manifest.home != str(home.path):
        told(f"it was {manifest.home}: set EVOLVE_HOME to where it is now")


def check_archive(archive: Path) -> Manifest:
    """Read all of it: ours, whole, of a format that we know, and every member stays inside."""
    try:
        with tarfile.open(archive, mode="r|gz") as tar:
            manifest = _manifest(tar, archive)
            links: set[PurePosixPath] = set()
            for member in tar:
                _check_member(member, links, archive)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BackupError(f"{archive} is no archive of `evolve backup`, or is broken: {error}") from None
    except OSError as error:
        raise BackupError(f"{archive}: {error.strerror or error}") from None
    return manifest


def _manifest(tar: tarfile.TarFile, archive: Path) -> Manifest:
    first = tar.next()
    content = tar.extractfile(first) if first is not None and first.name == MANIFEST else None
    if content is None:
        raise BackupError(f"{archive} is no archive of `evolve backup`: it does not begin with {MANIFEST}")
    try:
        manifest = Manifest.model_validate_json(content.read())
    except ValidationError:
        raise BackupError(f"{archive}: its {MANIFEST} cannot be read") from None
    if manifest.format != FORMAT:
        raise BackupError(
            f"{archive} has format {manifest.format}, of release {manifest.release}; this one reads {FORMAT}"
        )
    return manifest


def _check_member(member: tarfile.TarInfo, links: set[PurePosixPath], archive: Path) -> None:
    """`links` are the symbolic links so far: what is below one would be written where it leads."""
    path = PurePosixPath(member.name)
    paths = [path, PurePosixPath(member.linkname)] if member.islnk() else [path]
    for each in paths:
        if each.is_absolute() or ".." in each.parts or not links.isdisjoint(each.parents):
            raise BackupError(f"{archive} is unsafe: {member.name!r} leads out of it")
    is_whiteout = member.ischr() and (member.devmajor, member.devminor) == (0, 0)
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk() or is_whiteout):
        raise BackupError(f"{archive} is unsafe: {member.name!r} is a device or a pipe")
    if member.issym():
        links.add(path)


@contextmanager
def _draft(place: Path) -> Generator[Path]:
    """A private directory beside `place`, gone afterwards unless it was moved."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.restore-", dir=place.parent))
    except OSError as error:
        raise BackupError(f"{place.parent}: {error.strerror or error}") from error
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _unpack(tar: str, archive: Path, draft: Path) -> None:
    command = (
        *(tar, "--extract", "--gzip", "--numeric-owner", "--preserve-permissions", *ATTRIBUTES),
        *("--delay-directory-restore", f"--file={archive}", "--force-local", f"--directory={draft}"),
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BackupError(f"{archive} was not unpacked: {done.stderr.strip()[-500:] or done.returncode}")
    (draft / MANIFEST).unlink()
    draft.chmod(0o700)


def _swap(draft: Path, place: Path) -> Path | None:
    """Move `draft` to `place`; where what was there is now, None when nothing was."""
    aside = place.with_name(f"{place.name}.before-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    is_taken = os.path.lexists(place)
    try:
        if is_taken:
            place.rename(aside)
        draft.rename(place)
    except OSError as error:
        if is_taken and aside.exists() and not place.exists():
            aside.rename(place)
        raise BackupError(f"{place} cannot be replaced: {error.strerror or error}") from error
    return aside if is_taken else None
