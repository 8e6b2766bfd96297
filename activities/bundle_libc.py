"""A C library of its own for a program that an image cannot run: musl images, old glibc, no libstdc++.

The host's glibc is copied beside the program, and two names are written over in place, which leaves the
files' layout as it is (programs made by Bun carry their code behind their ELF): the loader's path in the
program, and in the loader the path of the cache that tells where libraries are. So nothing is set in the
environment, and what the agent starts is the image's own and finds the image's libraries.

Such images often have no bash either, and five of the harnesses run every command by `bash` (claude will not
start one without): the host's is given along, for whoever finds none before it in PATH.
"""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

from activities.harnesses.base import BUNDLE_ROOT
from domain.errors import InfrastructureFailure

LIBRARIES = (
    *("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2"),
    *("libnss_files.so.2", "libnss_dns.so.2", "libstdc++.so.6", "libgcc_s.so.1"),
)
_OPTIONAL = frozenset({"libnss_files.so.2", "libnss_dns.so.2"})
LIBRARY_FOLDERS = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")
LOADER = "/lib64/ld-linux-x86-64.so.2"
CACHE = "/etc/ld.so.cache"
OWN_LOADER = f"{BUNDLE_ROOT}/ld.so"
# Not longer than what it is written over.
OWN_CACHE = f"{BUNDLE_ROOT}/ld.c"
LIBC_FOLDER = "libc"
BASH = Path("/bin/bash")
_HEAD_BYTES = 64 * 1024
_CACHE_HEADER = "<20sII4B4I"
_CACHE_ENTRY = "<iIIIQ"
_LIBC6_X86_64 = 0x0303
_LITTLE_ENDIAN = 2


def add_libc(folder: Path) -> None:
    """The loader, its cache and the libraries below `folder`, which a box sees at `BUNDLE_ROOT`.

    Raises `InfrastructureFailure` on a host without glibc.
    """
    found = {name: path for name in LIBRARIES if (path := _library(name))} | _needed_by_bash()
    lacking = [name for name in LIBRARIES if name not in found and name not in _OPTIONAL]
    if lacking or not Path(LOADER).exists():
        raise InfrastructureFailure(
            f"this host has no glibc to give to an image that lacks it: no {', '.join(lacking) or LOADER}"
        )
    (folder / LIBC_FOLDER).mkdir(exist_ok=True)
    for name, path in found.items():
        shutil.copyfile(path, folder / LIBC_FOLDER / name)
    loader = _written_over(Path(LOADER).read_bytes(), CACHE, OWN_CACHE)
    _publish(folder / Path(OWN_CACHE).name, _cache(list(found)))
    _publish(folder / Path(OWN_LOADER).name, loader, 0o755)


def add_bash(folder: Path) -> None:
    """The host's bash in `folder`, where `add_libc` has its libraries; nothing on a host without one."""
    if BASH.exists():
        with_own_loader(BASH, folder / "bash")


def _needed_by_bash() -> dict[str, Path]:
    """Its libraries by name, as this host's loader finds them."""
    if not BASH.exists() or not Path(LOADER).exists():
        return {}
    listed = subprocess.run([LOADER, "--list", BASH], capture_output=True, text=True, check=True).stdout
    return {name: Path(path) for name, path in re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE)}


def with_own_loader(program: Path, target: Path) -> None:
    """A copy of a dynamically linked program that is started by `OWN_LOADER`."""
    shutil.copyfile(program, target)
    with target.open("r+b") as file:
        head = file.read(_HEAD_BYTES)
        file.seek(0)
        file.write(_written_over(head, LOADER, OWN_LOADER))
    target.chmod(0o755)


def _library(name: str) -> Path | None:
    return next((path for each in LIBRARY_FOLDERS if (path := Path(each, name)).exists()), None)


def _publish(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.write_bytes(data)
    path.chmod(mode)


def _written_over(data: bytes, old: str, new: str) -> bytes:
    """The first `old` replaced, with zeros up to its length; raises `InfrastructureFailure`."""
    before = old.encode() + b"\0"
    if before not in data:
        raise InfrastructureFailure(f"a program does not name {old}: it cannot be given a loader of its own")
    return data.replace(before, new.encode().ljust(len(before), b"\0"), 1)


def _cache(names: list[str]) -> bytes:
    """A loader's cache, glibc's format 1.1: a header, entries by falling name, the strings."""
    names = sorted(names, reverse=True)
    header_bytes = struct.calcsize(_CACHE_HEADER)
    strings_at = header_bytes + struct.calcsize(_CACHE_ENTRY) * len(names)
    entries, strings = b"", b""
    for name in names:
        key_at = strings_at + len(strings)
        value_at = key_at + len(name) + 1
        strings += f"{name}\0{BUNDLE_ROOT}/{LIBC_FOLDER}/{name}\0".encode()
        entries += struct.pack(_CACHE_ENTRY, _LIBC6_X86_64, key_at, value_at, 0, 0)
    flags = (_LITTLE_ENDIAN, 0, 0, 0, 0, 0, 0, 0)
    header = struct.pack(_CACHE_HEADER, b"glibc-ld.so.cache1.1", len(names), len(strings), *flags)
    return header + entries + strings
