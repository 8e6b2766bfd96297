"""A directory as a deterministic `.tar.gz` (contract §1.20), and archives back to directories."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from cli.errors import BrokenTransfer, CliError

SKIPPED_NAMES = frozenset({".git", ".DS_Store", ".venv"})
COMPRESSION_LEVEL = 6
COPY_BYTES = 1 << 20


def packable_files(directory: Path) -> list[str]:
    """Relative POSIX paths of the regular files that a package holds, sorted. Links are left out."""
    found: list[str] = []
    for folder, names, files in os.walk(directory, onerror=_refuse_walk):
        names[:] = [name for name in names if name not in SKIPPED_NAMES]
        for name in files:
            file = Path(folder) / name
            if name not in SKIPPED_NAMES and stat.S_ISREG(file.lstat().st_mode):
                found.append(file.relative_to(directory).as_posix())
    return sorted(found)


def pack_directory(directory: Path, target: IO[bytes]) -> None:
    """Write the package of `directory` to `target`. Equal content makes equal bytes."""
    compressed = gzip.GzipFile(
        filename="", mode="wb", fileobj=target, compresslevel=COMPRESSION_LEVEL, mtime=0
    )
    with (
        compressed,
        tarfile.open(mode="w", fileobj=compressed, format=tarfile.PAX_FORMAT, encoding="utf-8") as tar,
    ):
        for name in packable_files(directory):
            with (directory / name).open("rb") as content:
                tar.addfile(_entry(name, os.fstat(content.fileno())), content)


def _entry(name: str, status: os.stat_result) -> tarfile.TarInfo:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise CliError(f"{name!r}: the file's name is not UTF-8", code="invalid_input") from None
    entry = tarfile.TarInfo(name)
    entry.size = status.st_size
    entry.mode = 0o755 if status.st_mode & 0o111 else 0o644
    return entry


def _refuse_walk(error: OSError) -> None:
    raise CliError(f"{error.filename}: {error.strerror}", code="invalid_input")


def unpack_archive(archive: Path, target: Path, *, is_wrapped: bool, overwrite: bool = False) -> None:
    """Make the directory `target` of an archive's files, all of them or none.

    One folder around everything is taken off when the archive `is_wrapped`. Links and devices are left
    out, and a path that leads out of the archive is refused.
    """
    refuse_existing(target, overwrite=overwrite)
    with _scratch_directory(target) as scratch:
        try:
            with tarfile.open(archive, mode="r:gz") as tar:
                for entry in tar:
                    _unpack_entry(tar, entry, scratch)
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, OSError) as error:
            raise BrokenTransfer(f"the archive cannot be unpacked: {error}") from None
        content = _only_folder(scratch) if is_wrapped else scratch
        if target.exists():
            shutil.rmtree(target)
        content.rename(target)


def refuse_existing(target: Path, *, overwrite: bool) -> None:
    """Raise `CliError` if `target` is there and may not be replaced."""
    if target.exists() and not overwrite:
        raise CliError(f"{target} exists already", code="exists")


def _unpack_entry(tar: tarfile.TarFile, entry: tarfile.TarInfo, root: Path) -> None:
    name = PurePosixPath(entry.name)
    if name.is_absolute() or ".." in name.parts:
        raise BrokenTransfer(f"the archive holds an unsafe path: {entry.name!r}")
    if entry.isdir():
        (root / name).mkdir(parents=True, exist_ok=True)
    content = tar.extractfile(entry) if entry.isreg() else None
    if content is None:
        return
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    with content, (root / name).open("wb") as file:
        shutil.copyfileobj(content, file, COPY_BYTES)
    (root / name).chmod(0o755 if entry.mode & 0o111 else 0o644)


def _only_folder(scratch: Path) -> Path:
    children = list(scratch.iterdir())
    return children[0] if len(children) == 1 and children[0].is_dir() else scratch


@contextmanager
def _scratch_directory(target: Path) -> Generator[Path]:
    """A private directory beside `target`, gone afterwards."""
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name[:100]}.part-", dir=target.parent))
    try:
        inner = scratch / "content"
        inner.mkdir()
        yield inner
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
