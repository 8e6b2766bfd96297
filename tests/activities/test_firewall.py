from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from activities.sandboxes.firewall import host_addresses, ipv4_rules


def test_the_resolver_is_allowed_before_its_range_is_closed() -> None:
    lines = ipv4_rules(["10.0.2.3"], ["203.0.113.7"]).splitlines()
    allowed = lines.index("-A OUTPUT -d 10.0.2.3/32 -p udp --dport 53 -j ACCEPT")
    assert allowed < lines.index("-A OUTPUT -d 10.0.0.0/8 -j REJECT")
    assert "-A OUTPUT -d 203.0.113.7/32 -j REJECT" in lines


def test_only_loopback_is_named_as_an_interface() -> None:
    named = [line for line in ipv4_rules([], []).splitlines() if " -i " in line or " -o " in line]
    assert named == ["-A INPUT -i lo -j ACCEPT", "-A OUTPUT -o lo -j ACCEPT"]


def test_an_address_that_would_smuggle_a_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="ACCEPT"):
        ipv4_rules(["1.2.3.4 -j ACCEPT"], [])


def test_the_addresses_of_this_host_hold_no_loopback() -> None:
    assert not any(ip_address(each).is_loopback for each in host_addresses())


def test_local_addresses_are_told_from_routes(tmp_path: Path) -> None:
    table = tmp_path / "fib_trie"
    table.write_text(
        "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n"
        "     |-- 192.0.2.2\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n"
        "     |-- 127.0.0.1\n        /32 host LOCAL\n"
    )
    assert host_addresses(table) == ["192.0.2.2"]
