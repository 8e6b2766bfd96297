"""A box's files reached from this host, without a command in the box and without leaving it.

Every path is resolved by the kernel with the box's root as "/" (openat2, RESOLVE_IN_ROOT): a link to
/etc/shadow is the box's own, whatever its processes swap meanwhile. All calls block; use a thread.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath

from domain.errors import ArchiveError

_SYS_OPENAT2 = 437  # the same on every architecture
_RESOLVE_IN_ROOT = 0x10
_TRIES = 64
_COPY_BYTES = 1024 * 1024
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """`openat` with `root` (a directory's descriptor) as "/" for the path and every link in it."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, _RESOLVE_IN_ROOT)
    for _ in range(_TRIES):
        fd = _libc.syscall(
            _SYS_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.c_size_t(ctypes.sizeof(how))
        )
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number != errno.EAGAIN:  # a rename raced with "..": the kernel asks to try again
            raise OSError(number, os.strerror(number), path)
    raise OSError(errno.EAGAIN, "the path kept changing", path)


@contextmanager
def _opened(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Owner:
    """A user of the box as this host numbers it."""

    uid: int
    gid: int


def read_file(root: int, path: str, offset: int = 0, limit: int | None = None) -> tuple[int, bytes]:
    """Size and bytes of a regular file; raises `FileNotFoundError` for what is none."""
    try:
        fd = open_in_root(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG):
            raise FileNotFoundError(errno.ENOENT, "no such file in the box", path) from error
        raise
    with _opened(fd):
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file in the box", path)
        return found.st_size, _read_at(fd, offset, limit)


def _read_at(fd: int, offset: int, limit: int | None) -> bytes:
    parts: list[bytes] = []
    left = limit
    while left is None or left > 0:
        part = os.pread(fd, _COPY_BYTES if left is None else min(left, _COPY_BYTES), offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        left = None if left is None else left - len(part)
    return b"".join(parts)


def is_directory(root: int, path: str) -> bool:
    try:
        fd = open_in_root(root, path, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return False
    os.close(fd)
    return True


def make_directory(root: int, path: str, owner: Owner | None = None) -> int:
    """A descriptor of the directory, made with its parents where they are absent (0755)."""
    try:
        return open_in_root(root, path, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        name = PurePosixPath(path).name
        with _opened(make_directory(root, str(PurePosixPath(path).parent), owner)) as parent:
            os.mkdir(name, 0o755, dir_fd=parent)
            os.chmod(name, 0o755, dir_fd=parent)
            if owner:
                os.chown(name, owner.uid, owner.gid, dir_fd=parent, follow_symlinks=False)
        return open_in_root(root, path, os.O_PATH | os.O_DIRECTORY)


def write_file(root: int, path: str, data: bytes, mode: int, owner: Owner | None = None) -> None:
    """Write a file, its parents made where absent."""
    os.close(make_directory(root, str(PurePosixPath(path).parent)))
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY
    with _opened(open_in_root(root, path, flags, 0o600)) as fd:
        _write_all(fd, data)
        if owner:
            os.fchown(fd, owner.uid, owner.gid)
        os.fchmod(fd, mode)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def unpack_tar(root: int, path: str, tar: bytes) -> None:
    """Unpack below `path`; owners are this process, times and modes are kept, devices are refused."""
    os.close(make_directory(root, path))
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as archive:
        for member in archive:
            _unpack_member(root, path, archive, member)


def _unpack_member(root: int, path: str, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise ArchiveError(f"unsafe name in an archive for a box: {member.name!r}", param=member.name)
    target = str(PurePosixPath(path) / name)
    if member.isdir():
        with _opened(make_directory(root, target)) as fd:
            os.chmod(f"/proc/self/fd/{fd}", member.mode & 0o7777)
        return
    with _opened(make_directory(root, str(PurePosixPath(target).parent))) as parent:
        _remove_entry(name.name, parent)
        if member.isreg():
            _unpack_file(archive, member, name.name, parent)
        elif member.issym():
            os.symlink(member.linkname, name.name, dir_fd=parent)
        elif member.islnk():
            source = PurePosixPath(path) / member.linkname
            with _opened(open_in_root(root, str(source.parent), os.O_PATH | os.O_DIRECTORY)) as where:
                os.link(source.name, name.name, src_dir_fd=where, dst_dir_fd=parent, follow_symlinks=False)
        else:
            raise ArchiveError(f"a box takes no devices: {member.name!r}", param=member.name)


def _remove_entry(name: str, parent: int) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return


def _unpack_file(archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, parent: int) -> None:
    content = archive.extractfile(member)
    assert content is not None  # it is a regular file
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with _opened(os.open(name, flags, 0o600, dir_fd=parent)) as fd:
        while part := content.read(_COPY_BYTES):
            _write_all(fd, part)
        os.fchmod(fd, member.mode & 0o7777)
        os.utime(fd, (member.mtime, member.mtime))


class _Outbox(io.RawIOBase):
    """What tarfile has written and nobody has taken yet."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        part = bytes(memoryview(data))  # pyright: ignore[reportArgumentType] -- tarfile writes bytes
        self.parts.append(part)
        self.size += len(part)
        return len(part)

    def take(self) -> bytes:
        taken = b"".join(self.parts)
        self.parts, self.size = [], 0
        return taken


def pack_tar(root: int, path: str) -> Iterator[bytes]:
    """The tree at `path` as a tar stream, names relative to it; a file alone is one entry.

    Links are packed as links, sockets and devices are left out, and so are other kernels' file systems
    (/proc, /dev). Raises `FileNotFoundError`.
    """
    outbox = _Outbox()
    with tarfile.open(fileobj=outbox, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        with _opened(open_in_root(root, path, os.O_PATH)) as fd:
            is_tree = stat.S_ISDIR(os.fstat(fd).st_mode)
        place = path if is_tree else str(PurePosixPath(path).parent)
        with _opened(open_in_root(root, place, os.O_RDONLY | os.O_DIRECTORY)) as top:
            if not is_tree:
                _pack_entry(archive, top, PurePosixPath(path).name, "")
            else:
                for _ in _pack_directory(archive, top, "", _kernel_devices(root)):
                    if outbox.size >= _COPY_BYTES:
                        yield outbox.take()
    yield outbox.take()


def _kernel_devices(root: int) -> set[int]:
    return {os.stat(name, dir_fd=root).st_dev for name in ("proc", "dev")}


def _pack_directory(archive: tarfile.TarFile, at: int, prefix: str, skip: set[int]) -> Iterator[None]:
    for name in sorted(os.listdir(at)):
        if _pack_entry(archive, at, name, prefix):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            with _opened(os.open(name, flags, dir_fd=at)) as below:
                if os.fstat(below).st_dev not in skip:
                    yield from _pack_directory(archive, below, f"{prefix}{name}/", skip)
        yield


def _pack_entry(archive: tarfile.TarFile, at: int, name: str, prefix: str) -> bool:
    """Add one entry; whether it is a directory. What went away meanwhile is left out."""
    try:
        found = os.stat(name, dir_fd=at, follow_symlinks=False)
        entry = tarfile.TarInfo(prefix + name)
        entry.mode, entry.mtime = stat.S_IMODE(found.st_mode), int(found.st_mtime)
        entry.uid, entry.gid = (0, 0) if found.st_uid == os.geteuid() else (found.st_uid, found.st_gid)
        if stat.S_ISREG(found.st_mode):
            _pack_file(archive, entry, at, name)
        elif stat.S_ISLNK(found.st_mode):
            entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=at)
            archive.addfile(entry)
        elif stat.S_ISDIR(found.st_mode):
            entry.type = tarfile.DIRTYPE
            archive.addfile(entry)
            return True
    except FileNotFoundError:
        return False
    return False


def _pack_file(archive: tarfile.TarFile, entry: tarfile.TarInfo, at: int, name: str) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=at), "rb", buffering=0) as content:
        entry.size = os.fstat(content.fileno()).st_size
        archive.addfile(entry, _Exactly(content, entry.size))


class _Exactly(io.RawIOBase):
    """A file read to exactly `size` bytes: one that shrinks meanwhile is filled with zeros."""

    def __init__(self, content: io.FileIO, size: int) -> None:
        self._content = content
        self._left = size

    def read(self, size: int = -1, /) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        got = self._content.read(wanted) or b""
        while len(got) < wanted:
            more = self._content.read(wanted - len(got))
            got += more or bytes(wanted - len(got))
        self._left -= wanted
        return got
