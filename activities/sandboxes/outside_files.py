"""Files of a box read and written from outside it, by root of this machine, through `/proc/PID/root`.

No program of the box runs, and a path can never lead out of it: each one is resolved by the kernel
below the box's root (openat2(2), RESOLVE_IN_ROOT), links included. What is read may be changed or
forged by the box meanwhile; that cannot harm this side.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import posixpath
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from domain.errors import ArchiveError

SYS_OPENAT2 = 437
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_IN_ROOT = 0x10
CHUNK_BYTES = 1024 * 1024
# Kernel's own trees, never a task's files.
PSEUDO_FOLDERS = frozenset(("/proc", "/sys", "/dev"))

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_below(root: int, path: str, flags: int, mode: int = 0) -> int:
    """A descriptor of `path` as the box whose root folder is `root` sees it; raises `OSError`."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    while True:
        found: int = _libc.syscall(
            SYS_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how)
        )
        if found >= 0:
            return found
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):  # EAGAIN: a rename went on at the same time
            raise OSError(number, os.strerror(number), path)


def can_open_below() -> bool:
    """Whether this kernel and our rights allow all of this."""
    if os.geteuid() != 0:
        return False
    with _closing(os.open("/", os.O_PATH)) as root:
        try:
            os.close(open_below(root, "/", os.O_PATH))
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_root(pid: int) -> int:
    """The root folder of a living process; raises `FileNotFoundError` or `ProcessLookupError`."""
    return os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def read_slice(root: int, path: str, offset: int, limit: int | None) -> tuple[int, bytes]:
    """The size of a regular file and its bytes from `offset` on; raises `FileNotFoundError`."""
    try:
        descriptor = open_below(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise FileNotFoundError(path) from error
    with _closing(descriptor):
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise FileNotFoundError(path)
        return status.st_size, _pread(descriptor, offset, limit)


def _pread(descriptor: int, offset: int, limit: int | None) -> bytes:
    data = bytearray()
    while limit is None or len(data) < limit:
        wanted = CHUNK_BYTES if limit is None else min(CHUNK_BYTES, limit - len(data))
        chunk = os.pread(descriptor, wanted, offset + len(data))
        if not chunk:
            break
        data += chunk
    return bytes(data)


def is_folder(root: int, path: str) -> bool:
    try:
        os.close(open_below(root, path, os.O_PATH | os.O_DIRECTORY))
    except OSError:
        return False
    return True


def write_file(root: int, path: str, data: bytes, mode: int, owner: tuple[int, int]) -> None:
    """Put a new file in the place of whatever is there; absent folders are made."""
    with _closing(open_folder(root, posixpath.dirname(path))) as folder:
        _put_file(folder, posixpath.basename(path), io.BytesIO(data), mode, owner)


def open_folder(root: int, path: str) -> int:
    """The folder, made with those above it when absent; raises `NotADirectoryError`."""
    try:
        return open_below(root, path or "/", os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        above, name = posixpath.split(path.rstrip("/"))
        with _closing(open_folder(root, above)) as parent, contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
        return open_below(root, path, os.O_RDONLY | os.O_DIRECTORY)


def _put_file(folder: int, name: str, data: IO[bytes], mode: int, owner: tuple[int, int]) -> None:
    _remove(folder, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        while chunk := data.read(CHUNK_BYTES):
            file.write(chunk)
        os.fchown(file.fileno(), *owner)
        os.fchmod(file.fileno(), mode)


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def unpack(root: int, path: str, tar: IO[bytes]) -> None:
    """Unpack below `path`, as root; raises `ArchiveError` for a name or kind that it cannot take."""
    with tarfile.open(fileobj=tar) as source:
        os.close(open_folder(root, path))
        for member in source:
            name = posixpath.normpath(member.name.lstrip("/") or ".")
            if name.startswith(".."):
                raise ArchiveError(f"the entry {member.name!r} leaves the archive")
            _unpack_member(root, posixpath.join(path, name), path, source, member)


def _unpack_member(
    root: int, target: str, base: str, source: tarfile.TarFile, member: tarfile.TarInfo
) -> None:
    if member.isdir():
        with _closing(open_folder(root, target)) as folder:
            os.fchown(folder, *_root_of_box())
            os.fchmod(folder, member.mode)
        return
    with _closing(open_folder(root, posixpath.dirname(target))) as folder:
        name = posixpath.basename(target)
        if member.isreg() and (data := source.extractfile(member)):
            _put_file(folder, name, data, member.mode, _root_of_box())
        elif member.issym():
            _remove(folder, name)
            os.symlink(member.linkname, name, dir_fd=folder)
        elif member.islnk():
            _link(root, posixpath.join(base, member.linkname), folder, name)
        else:
            raise ArchiveError(f"the entry {member.name!r} is no file, folder or link")


def _root_of_box() -> tuple[int, int]:
    """Root itself; a normal user's boxes know that user as their root."""
    return os.geteuid(), os.getegid()


def _link(root: int, existing: str, folder: int, name: str) -> None:
    with _closing(open_below(root, posixpath.dirname(existing), os.O_PATH | os.O_DIRECTORY)) as source:
        _remove(folder, name)
        os.link(
            posixpath.basename(existing), name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False
        )


def pack(root: int, path: str, target: IO[bytes]) -> None:
    """Write the tree at `path` as a tar, without sockets, pipes and devices; raises `FileNotFoundError`."""
    try:
        top = open_below(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise FileNotFoundError(path) from error
    with _closing(top), tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        packer = _Packer(tar)
        if stat.S_ISDIR(os.fstat(top).st_mode):
            packer.add_folder(top, ".", posixpath.normpath(path))
        else:
            packer.add_file(top, posixpath.basename(path))


class _Packer:
    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._seen: dict[tuple[int, int], str] = {}

    def add_folder(self, folder: int, name: str, place: str) -> None:
        """`place` is where the folder lies in the box, `name` what it is called in the tar."""
        self._tar.addfile(_member(os.fstat(folder), name, tarfile.DIRTYPE))
        for entry in sorted(os.listdir(folder)):
            below = posixpath.join(place, entry)
            if below not in PSEUDO_FOLDERS:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    self._add_entry(folder, entry, f"{name}/{entry}", below)

    def _add_entry(self, folder: int, entry: str, name: str, place: str) -> None:
        status = os.stat(entry, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            member = _member(status, name, tarfile.SYMTYPE)
            member.linkname = os.readlink(entry, dir_fd=folder)
            self._tar.addfile(member)
        elif stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            with _closing(os.open(entry, flags, dir_fd=folder)) as descriptor:
                if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                    self.add_folder(descriptor, name, place)
                else:
                    self.add_file(descriptor, name)

    def add_file(self, descriptor: int, name: str) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return
        first = self._seen.setdefault((status.st_dev, status.st_ino), name)
        if status.st_nlink > 1 and first != name:
            member = _member(status, name, tarfile.LNKTYPE)
            member.linkname = first
            self._tar.addfile(member)
            return
        member = _member(status, name, tarfile.REGTYPE)
        member.size = status.st_size
        with open(os.dup(descriptor), "rb") as file:
            self._tar.addfile(member, _Exactly(file, member.size))


class _Exactly(io.RawIOBase):
    """A file as long as it was when its header was written: cut off, or filled with zeros."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= wanted
        return data.ljust(wanted, b"\0")


def _member(status: os.stat_result, name: str, kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.mode = stat.S_IMODE(status.st_mode)
    uid, gid = _root_of_box()
    member.uid = 0 if status.st_uid == uid else status.st_uid
    member.gid = 0 if status.st_gid == gid else status.st_gid
    member.mtime = int(status.st_mtime)
    return member


def process_start_ticks(pid: int) -> int:
    """When a process of this machine began (proc(5), stat, field 22); raises `ProcessLookupError`."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1").rpartition(") ")[2].split()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {pid} is over") from error
    return int(fields[19])
