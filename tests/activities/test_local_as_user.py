"""What holds for local boxes of root holds for those of a normal user: the same tests, run by one."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

UID = 54_321
REPOSITORY = Path(__file__).parents[2]
TESTS = ("test_local_boxes.py", "test_local_isolation.py", "test_local_images.py", "test_process.py")

# In mounts of its own, because neither the repository nor the interpreter need be readable to others
# where they are. A tun device that users may open is there too, as on most desktops.
# $1 is the uid, then repository, interpreter's prefix, packages, home, and the tests.
AS_USER = """
set -e
uid=$1 repository=$2 prefix=$3 packages=$4 home=$5
shift 5
mount -t tmpfs -o mode=755 none /mnt
mkdir /mnt/repository /mnt/prefix /mnt/packages /mnt/home
mount --bind "$repository" /mnt/repository
mount --bind "$prefix" /mnt/prefix
mount --bind "$packages" /mnt/packages
mount --bind "$home" /mnt/home
mknod -m 666 /mnt/tun c 10 200
mount --bind /mnt/tun /dev/net/tun
cd /mnt/repository
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups --bounding-set=-all --inh-caps=-all \\
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/mnt/home TMPDIR=/mnt/home PYTHONDONTWRITEBYTECODE=1 \\
    PYTHONHOME=/mnt/prefix PYTHONPATH=/mnt/repository:/mnt/packages "$@"
"""


@pytest.mark.root
@pytest.mark.timeout(900)
async def test_the_same_holds_for_a_normal_user() -> None:
    python = f"/mnt/prefix/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    pytest_command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "--tb=short",
        "--durations=15",
    ]
    chosen = ["-m", "not root", *(f"tests/activities/{name}" for name in TESTS)]
    with tempfile.TemporaryDirectory(prefix="evolve-user-", dir="/var/tmp") as home:
        given_to(UID, home)
        places = [str(REPOSITORY), sys.base_prefix, sysconfig.get_path("purelib"), home]
        process = await asyncio.create_subprocess_exec(
            *["unshare", "--mount", "sh", "-c", AS_USER, "as-user", str(UID), *places],
            *[*pytest_command, *chosen],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        told, _ = await process.communicate()
    print(told.decode())
    assert process.returncode == 0, told.decode()[-8_000:]


def given_to(uid: int, folder: str) -> None:
    os.chown(folder, uid, uid)
