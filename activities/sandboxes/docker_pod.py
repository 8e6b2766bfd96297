"""The net pod of a box: a small container that owns the network namespace, its firewall and the relay.

It runs from an image without files; this machine's programs and the worker's interpreter are mounted
read-only, so it depends neither on a registry nor on the task's image. The firewall is written before
the relay listens, and the box is started only when it does.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from activities.sandboxes import relay
from activities.sandboxes.docker_labels import INSTALLATION, PART, POOL
from activities.sandboxes.firewall import IPV6_RULES, host_addresses, ipv4_rules

HOST_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc/alternatives")
GATEWAY_FOLDER = "/gateway"
HOSTNAME = "sandbox"
MEMORY_BYTES = 128 * 1024 * 1024
PIDS = 64
READY_TIMEOUT_SEC = 30.0
READY_POLL_SEC = 0.005
SMALL_LOG = {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}}
# What docker itself falls back to when this machine names no resolver that a container can reach.
FALLBACK_RESOLVERS = ("8.8.8.8", "8.8.4.4")
RESOLVER_FILES = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
LISTENING = "0A"

# Pid 1 stays when the relay dies, because the namespace must outlive it.
SCRIPT = """
printf '%s' "$RULES" | iptables-restore || exit 1
if [ -e /proc/net/if_inet6 ]; then printf '%s' "$IPV6_RULES" | ip6tables-restore || exit 1; fi
while :; do
  setpriv --reuid "$RELAY_UID" --regid "$RELAY_GID" --clear-groups --bounding-set=-all --inh-caps=-all \
    "$PYTHON" -I -S -c "$RELAY" "$GATEWAY_SOCKET"
  sleep 0.2
done
"""


@dataclass(frozen=True)
class PodHost:
    """What every pod on this machine shares. `gateway_socket`'s folder must exist; the socket may come."""

    installation_id: str
    gateway_socket: Path
    python: Path

    def config(self, image: str, network: str, pool_id: str) -> dict[str, Any]:
        """The engine's create request of a pod."""
        program = self.program_config()
        gateway = _bind(str(self.gateway_socket.parent), GATEWAY_FOLDER)
        return {
            "Image": image,
            "Entrypoint": ["/bin/sh", "-c", SCRIPT],
            "Env": [f"{key}={value}" for key, value in self._environment().items()],
            "Labels": {INSTALLATION: self.installation_id, PART: "pod", POOL: pool_id},
            "Hostname": HOSTNAME,
            "HostConfig": program
            | {
                "NetworkMode": network,
                "Tmpfs": {"/run": ""},
                "CapAdd": ["NET_ADMIN", "NET_RAW", "SETUID", "SETGID", "SETPCAP"],
                "Mounts": [*program["Mounts"], gateway],
            },
        }

    def program_config(self) -> dict[str, Any]:
        """The `HostConfig` of a container that runs this machine's own programs, and may do nothing."""
        folders = [folder for folder in HOST_FOLDERS if Path(folder).exists()]
        prefix = self._interpreter().parent.parent
        if not any(prefix.is_relative_to(folder) for folder in folders):
            folders.append(str(prefix))
        return {
            "ReadonlyRootfs": True,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Memory": MEMORY_BYTES,
            "PidsLimit": PIDS,
            "Mounts": [_bind(folder, folder) for folder in folders],
            "LogConfig": SMALL_LOG,
        }

    def python_command(self, source: str, *arguments: str) -> list[str]:
        return [str(self._interpreter()), "-I", "-S", "-c", source, *arguments]

    def _interpreter(self) -> Path:
        """The real one: a virtual environment's is a link to it."""
        return self.python.resolve()

    def _environment(self) -> dict[str, str]:
        owner = self.gateway_socket.parent.stat()
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "RULES": ipv4_rules(host_resolvers(), host_addresses()),
            "IPV6_RULES": IPV6_RULES,
            "RELAY": inspect.getsource(relay),
            # The socket's owner: another uid may not pass a folder and a socket of mode 0700.
            "RELAY_UID": str(owner.st_uid),
            "RELAY_GID": str(owner.st_gid),
            "PYTHON": str(self._interpreter()),
            "GATEWAY_SOCKET": f"{GATEWAY_FOLDER}/{self.gateway_socket.name}",
        }


def _bind(source: str, target: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}


def host_resolvers() -> list[str]:
    """IPv4 resolvers of this machine that another network namespace can reach."""
    for path in RESOLVER_FILES:
        words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        found = [each[1] for each in words if each[:1] == ["nameserver"] and len(each) > 1]
        reachable = [each for each in found if ":" not in each and not each.startswith("127.")]
        if reachable:
            return reachable
    return list(FALLBACK_RESOLVERS)


async def wait_until_ready(pid: int) -> bool:
    """Wait until the relay of the pod with this pid listens; False when the pod ended or never did.

    Read from this machine's /proc, which needs no right and no call to the engine.
    """
    give_up_at = time.monotonic() + READY_TIMEOUT_SEC
    while time.monotonic() < give_up_at:
        try:
            if _listens(pid):
                return True
        except OSError:
            return False
        await asyncio.sleep(READY_POLL_SEC)
    return False


def _listens(pid: int) -> bool:
    """Whether the relay's port is in LISTEN in the namespace of `pid`; raises `OSError` when that is over."""
    table = Path(f"/proc/{pid}/net/tcp").read_text()
    wanted = f"0100007F:{relay.PORT:04X}"
    return any(
        words[1:2] == [wanted] and words[3] == LISTENING for words in map(str.split, table.splitlines())
    )
