"""The root file system that local boxes start from: one a host and user, made from an allowlist.

Nothing of the host is in it but `/usr` (mounted beside it), the links to that, and the parts of `/etc`
that programs in `/usr` need. Passwords are made up, and nothing of a home, of `/var` or of another
user's is copied.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from pathlib import Path

from activities.sandboxes.local_record import locked_file

FORMAT = "1"
LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
FOLDERS = {
    **dict.fromkeys(
        (
            "dev",
            "etc",
            "etc/apt/apt.conf.d",
            "etc/apt/preferences.d",
            "home",
            "media",
            "mnt",
            "opt",
            "proc",
            "run",
            "run/lock",
            "srv",
            "sys",
            "usr",
        ),
        0o755,
    ),
    **dict.fromkeys(
        ("var", "var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/lib/dpkg"), 0o755
    ),
    **dict.fromkeys(("var/local", "var/log", "var/log/apt", "var/mail", "var/spool"), 0o755),
    "root": 0o700,
    "tmp": 0o1777,
    "var/tmp": 0o1777,
}
ETC = (
    *("alternatives", "apt/keyrings", "apt/sources.list", "apt/sources.list.d", "apt/trusted.gpg.d"),
    *("bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "default/locale"),
    *("default/useradd", "dpkg"),
    *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "login.defs", "mime.types"),
    *("nsswitch.conf", "os-release", "pam.conf", "pam.d", "perl", "profile", "protocols", "python3"),
    *("python3.11", "python3.12", "python3.13", "security", "services", "shells", "skel"),
    *("ssl/certs", "ssl/openssl.cnf", "timezone", "pki/tls/certs", "pki/ca-trust/extracted"),
    *("redhat-release", "crypto-policies"),
)
MADE_UP = {
    "hostname": "box\n",
    "hosts": "127.0.0.1\tlocalhost box\n",
    "resolv.conf": "",
    "fstab": "",
}
FIRST_USER_ID = 1000
NOBODY = 65534


def template_key() -> str:
    """Names the template by what it is made from: another user's, or after an upgrade, is another."""
    parts = [FORMAT, str(os.geteuid())]
    for path in ("/var/lib/dpkg/status", "/etc/ld.so.cache", "/etc/os-release", "/usr/bin", "/usr/lib"):
        try:
            found = Path(path).stat()
        except FileNotFoundError:
            continue
        parts.append(f"{path} {found.st_mtime_ns} {found.st_size}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


async def ensure_template(state_dir: Path) -> Path:
    """The template's directory, made once."""
    target = state_dir / "templates" / template_key()
    if target.exists():
        return target
    async with locked_file(state_dir / "locks" / f"template-{target.name}"):
        if not target.exists():
            new = target.with_suffix(".new")
            shutil.rmtree(new, ignore_errors=True)
            make_template(new)
            new.rename(target)
    return target


def make_template(root: Path) -> None:
    for name, mode in FOLDERS.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
    for name in LINKS:
        host = Path("/", name)
        if host.is_symlink():
            (root / name).symlink_to(host.readlink())
        elif host.is_dir():
            (root / name).mkdir()
    (root / "var/run").symlink_to("/run")
    (root / "var/lock").symlink_to("/run/lock")
    for name in ETC:
        _copy(Path("/etc", name), root / "etc" / name)
    _write_made_up(root / "etc")


def unmerged_folders() -> list[str]:
    """Of a host whose /bin and so on are no links: what has to be mounted beside /usr."""
    return [f"/{name}" for name in LINKS if not Path("/", name).is_symlink() and Path("/", name).is_dir()]


def _copy(source: Path, target: Path) -> None:
    """A file, link or tree, without what not everybody may read, or what holds a login."""
    if source.is_symlink():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source.readlink())
    elif source.is_dir() and source.stat().st_mode & stat.S_IXOTH:
        target.mkdir(parents=True, exist_ok=True)
        for each in source.iterdir():
            _copy(each, target / each.name)
    elif source.is_file() and source.stat().st_mode & stat.S_IROTH and not _holds_login(source):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(source.stat().st_mode & 0o755)


def _holds_login(path: Path) -> bool:
    """A package source may be an address with a password in it."""
    return "apt" in path.parts and re.search(rb"://[^/\s]*@", path.read_bytes()) is not None


def _write_made_up(etc: Path) -> None:
    users = _system_entries(Path("/etc/passwd"))
    for name, content in MADE_UP.items():
        (etc / name).write_text(content)
    (etc / "mtab").symlink_to("/proc/self/mounts")
    passwd = [f"{name}:x:{uid}:{gid}::{home}:{shell}" for name, _, uid, gid, _, home, shell in users]
    (etc / "passwd").write_text("\n".join(passwd) + "\n")
    groups = _system_entries(Path("/etc/group"))
    (etc / "group").write_text("\n".join(f"{name}:x:{gid}:" for name, _, gid, *_ in groups) + "\n")
    for name, entries in (("shadow", users), ("gshadow", groups)):
        rest = ":19000:0:99999:7:::" if name == "shadow" else "::"
        (etc / name).write_text("".join(f"{entry[0]}:*{rest}\n" for entry in entries))
        (etc / name).chmod(0o640)


def _system_entries(path: Path) -> list[list[str]]:
    """The system's own users or groups, which packages in /usr count on; no person's."""
    entries = [line.split(":") for line in path.read_text().splitlines() if line.count(":") >= 3]
    return [each for each in entries if int(each[2]) < FIRST_USER_ID or int(each[2]) == NOBODY]
