"""The firewall of a net pod in `public` mode: the internet and one resolver, nothing of the host's.

Routes are not enough: a socket bound to a device (`SO_BINDTODEVICE`, free for anyone since Linux 5.7)
passes by `unreachable` routes. Netfilter in the pod's own namespace does not let it pass, and a box
without NET_ADMIN and NET_RAW cannot undo or underrun it. Only `*filter` is written: docker's embedded
DNS lives in `nat`.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address
from pathlib import Path

# Private, shared, link-local (the metadata address is one), benchmark, multicast, reserved, broadcast.
CLOSED_RANGES = (
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "100.64.0.0/10",
    "192.0.0.0/24",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
)

IPV6_RULES = """\
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT DROP [0:0]
-A INPUT -i lo -j ACCEPT
-A OUTPUT -o lo -j ACCEPT
COMMIT
"""


def ipv4_rules(resolvers: Collection[str], host_addresses: Collection[str]) -> str:
    """The text for `iptables-restore`. Addresses are dotted IPv4; raises `ValueError` on anything else.

    Rejected rather than dropped, so that a box learns at once. No rule names an interface but lo,
    because a network that is taken away and given back comes under a new name.
    """
    closed = [*(f"{IPv4Address(each)}/32" for each in sorted(host_addresses)), *CLOSED_RANGES]
    allowed = [
        f"-A OUTPUT -d {IPv4Address(each)}/32 -p {protocol} --dport 53 -j ACCEPT"
        for each in sorted(resolvers)
        for protocol in ("udp", "tcp")
    ]
    lines = [
        "*filter",
        ":INPUT DROP [0:0]",
        ":FORWARD DROP [0:0]",
        ":OUTPUT ACCEPT [0:0]",
        "-A INPUT -i lo -j ACCEPT",
        "-A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
        "-A OUTPUT -o lo -j ACCEPT",
        *allowed,
        *(f"-A OUTPUT -d {each} -j REJECT" for each in closed),
        "COMMIT",
    ]
    return "\n".join(lines) + "\n"


def host_addresses(fib_trie: Path = Path("/proc/net/fib_trie")) -> list[str]:
    """Every IPv4 address of this host but loopback's, as the kernel's routing table says it."""
    found: set[str] = set()
    address = ""
    for line in fib_trie.read_text().splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            address = words[1]
        elif words[:3] == ["/32", "host", "LOCAL"] and not IPv4Address(address).is_loopback:
            found.add(address)
    return sorted(found)
