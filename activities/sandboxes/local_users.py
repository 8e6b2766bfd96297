"""Users of a box, as its own /etc/passwd and /etc/group tell them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from domain.errors import TaskError

Read = Callable[[str], Awaitable[bytes]]


@dataclass(frozen=True)
class BoxUser:
    """`groups` are the supplementary ones."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


ROOT = BoxUser(0, 0, (), "/root")


async def find_user(read: Read, user: str | None) -> BoxUser:
    """A user by name or number; `read` reads a file of the box. Raises `TaskError` for an unknown name."""
    if user in (None, "", "root", "0"):
        return ROOT
    entries = [line.split(":") for line in await _lines(read, "/etc/passwd") if line.count(":") == 6]
    for name, _, uid, gid, _, home, _ in sorted(entries, key=lambda entry: entry[0] != user):
        if user in (name, uid):
            return BoxUser(int(uid), int(gid), await _groups_of(read, name), home)
    if not user.isdigit():
        raise TaskError(f"the user {user!r} does not exist in the box", param="user")
    return BoxUser(int(user), 0, (), "/")


async def find_group(read: Read, group: str) -> int:
    """A group by name or number; raises `TaskError` for an unknown name."""
    for line in await _lines(read, "/etc/group"):
        name, _, gid, *_ = line.split(":")
        if name == group:
            return int(gid)
    if not group.isdigit():
        raise TaskError(f"the group {group!r} does not exist in the box", param="group")
    return int(group)


async def _groups_of(read: Read, name: str) -> tuple[int, ...]:
    found = [line.split(":") for line in await _lines(read, "/etc/group")]
    return tuple(int(each[2]) for each in found if len(each) == 4 and name in each[3].split(","))


async def _lines(read: Read, path: str) -> list[str]:
    try:
        return (await read(path)).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
