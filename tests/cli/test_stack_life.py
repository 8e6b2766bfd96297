"""The embedded stack up, killed in parts, taken over, down and up again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from tests.cli.conftest import Evolve
from tests.cli.stack_harness import CHILDREN, Stack, is_alive, normal_user, temporary_stack

# One stack for all of them, so they belong to one worker process.
pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("stack_life"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def made_stack() -> Iterator[Stack]:
    with temporary_stack() as made:
        yield made


@pytest.fixture
def stack(made_stack: Stack) -> Stack:
    """A stack that is up, whatever the test before did to it."""
    if not made_stack.is_healthy():
        made_stack.up()
        made_stack.await_healthy()
    return made_stack


def test_every_process_is_listed_with_url_pid_health_and_log(stack: Stack) -> None:
    done = stack.run("status", "--json")
    assert done.returncode == 0, done.stdout
    processes = {process["name"]: process for process in json.loads(done.stdout)["processes"]}
    assert set(processes) == {"supervisor", *CHILDREN}
    assert {process["health"] for process in processes.values()} == {"healthy"}
    assert all(is_alive(process["pid"]) for process in processes.values())
    assert all(Path(process["log_file"]).exists() for process in processes.values())
    assert processes["api"]["url"] == stack.api_url
    assert processes["temporal"]["url"].endswith(stack.environment["EVOLVE_TEMPORAL_UI_PORT"])


def test_the_first_start_leaves_a_key_that_works_in_a_private_file(stack: Stack) -> None:
    path = stack.home / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(stack.home.stat().st_mode) == 0o700
    credentials = json.loads(path.read_text())
    assert credentials["dashboard_url"] == stack.api_url
    assert _status_code(stack, credentials["api_key"]) == 200
    assert _status_code(stack, "evk_wrong") == 401


def test_keys_and_users_are_administered_in_the_database(
    stack: Stack, evolve: Evolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOLVE_HOME", str(stack.home))
    made = json.loads(evolve("admin", "key", "create", "--read-only", "--json").out)
    assert _status_code(stack, made["api_key"]) == 200
    assert evolve("admin", "key", "revoke", made["id"]).exit_code == 0
    assert _status_code(stack, made["api_key"]) == 401
    added = json.loads(evolve("admin", "user", "add", "ada@example.org", "--json").out)
    assert _status_code(stack, added["api_key"]) == 200
    again = evolve("admin", "user", "add", "ada@example.org")
    assert again.exit_code == 1
    assert "ada@example.org already" in again.err
    keys = json.loads(evolve("admin", "key", "list", "--json").out)
    assert [key["is_read_only"] for key in keys] == [False, True, False]
    assert "api_key" not in keys[0]


def test_no_secret_is_in_a_command_line_or_a_log(stack: Stack) -> None:
    secrets = [
        json.loads((stack.home / "credentials.json").read_text())["api_key"],
        (stack.home / "pgpass").read_text().strip().rpartition(":")[2],
    ]
    seen = stack.logs()
    for pid in stack.pids().values():
        seen += Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()
    assert not [secret for secret in secrets if secret in seen]


def test_nothing_of_the_stack_calls_out(stack: Stack) -> None:
    ui = f"http://127.0.0.1:{stack.environment['EVOLVE_TEMPORAL_UI_PORT']}"
    assert httpx.get(f"{ui}/api/v1/settings", trust_env=False).json()["DisableNewsFetch"] is True
    arguments = Path(f"/proc/{stack.pids()['temporal']}/cmdline").read_text()
    assert "frontend.enableServerVersionCheck=false" in arguments
    outside = {name: _foreign_addresses(pid) for name, pid in stack.pids().items()}
    assert outside == {name: set() for name in CHILDREN}


def test_postgres_takes_no_port_and_nobody_without_the_password(stack: Stack) -> None:
    pid = stack.pids()["postgres"]
    assert _listening_ports(pid) == set()
    if os.geteuid() == 0:
        assert Path(f"/proc/{pid}").stat().st_uid != 0
    url = f"postgresql://evolve:wrong@/evolve?host={stack.home}/pg"
    with pytest.raises(asyncpg.InvalidPasswordError):
        asyncio.run(_connect(url))


def test_the_gateway_refuses_in_the_shape_of_each_protocol(stack: Stack) -> None:
    transport = httpx.HTTPTransport(uds=str(stack.home / "run/gateway/gateway.sock"))
    with httpx.Client(transport=transport, base_url="http://gateway") as relay:
        messages = relay.post("/v1/messages", headers={"x-api-key": "nope"}, json={})
        chat = relay.post("/v1/chat/completions", json={})
        gemini = relay.post("/v1beta/models/gemini-pro:generateContent", json={})
    assert [answer.status_code for answer in (messages, chat, gemini)] == [401, 401, 401]
    assert messages.json()["error"] == {"type": "authentication_error", "message": "no such key"}
    assert chat.json()["error"]["code"] == "invalid_api_key"
    assert gemini.json()["error"]["status"] == "UNAUTHENTICATED"
    assert stat.S_IMODE((stack.home / "run/gateway").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", CHILDREN)
def test_a_killed_child_is_started_again(stack: Stack, name: str) -> None:
    before = stack.pids()
    killed = stack.kill(name)
    stack.await_healthy()
    after = stack.pids()
    assert after[name] != killed
    assert {n: p for n, p in after.items() if n != name} == {n: p for n, p in before.items() if n != name}
    assert stack.status()[name].restarts >= 1


def test_a_second_up_of_the_same_home_starts_nothing(stack: Stack) -> None:
    before = stack.pids()
    assert "already running" in stack.up()
    foreground = stack.run("up")
    assert foreground.returncode == 1
    assert "already running" in foreground.stderr
    assert stack.pids() == before


def test_a_busy_port_is_named_with_its_variable_and_nothing_is_left(stack: Stack) -> None:
    port = stack.environment["EVOLVE_GATEWAY_PORT"]
    with temporary_stack(environment={"EVOLVE_GATEWAY_PORT": port}) as other:
        done = other.run("up", "--detach")
        assert done.returncode == 1
        assert f"port {port}" in done.stderr
        assert "EVOLVE_GATEWAY_PORT" in done.stderr
        assert other.pids() == {}


def test_a_killed_supervisor_leaves_a_working_stack_that_the_next_up_takes_over(stack: Stack) -> None:
    before = stack.pids()
    stack.kill("supervisor")
    assert stack.status()["supervisor"].health == "stopped"
    assert stack.status()["api"].health == "healthy"
    said = stack.up()
    assert said.count("taken over") == len(CHILDREN)
    assert stack.pids() == before
    # And they are kept again.
    killed = stack.kill("gateway")
    stack.await_healthy()
    assert stack.pids()["gateway"] != killed


def test_what_a_killed_supervisor_left_is_replaced_when_it_would_be_set_up_differently(stack: Stack) -> None:
    before = stack.pids()
    stack.kill("supervisor")
    stack.environment["EVOLVE_LOG_LEVEL"] = "debug"
    stack.up()
    after = stack.pids()
    kept = {name for name in CHILDREN if after[name] == before[name]}
    assert kept == {"postgres", "temporal"}
    assert not [before[name] for name in CHILDREN if name not in kept and is_alive(before[name])]


@pytest.mark.timeout(900)
def test_another_home_of_a_normal_user_runs_beside_it(stack: Stack) -> None:
    before = stack.pids()
    with temporary_stack(**normal_user()) as other:
        other.up()
        other.await_healthy()
        key = json.loads((other.home / "credentials.json").read_text())["api_key"]
        assert _status_code(other, key) == 200
        assert _status_code(stack, key) == 401
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid in other.pids().values()}
        assert len(owners) == 1
        assert owners != {0}
        other.down()
        assert other.pids() == {}
    assert stack.pids() == before


def test_down_stops_what_a_killed_supervisor_left_and_a_foreground_up_finds_the_data(stack: Stack) -> None:
    credentials = (stack.home / "credentials.json").read_text()
    pids = stack.pids()
    stack.kill("supervisor")
    done = stack.run("down", "--stop-trials")
    assert done.returncode == 0, done.stderr
    assert not [pid for pid in pids.values() if is_alive(pid)]
    assert stack.run("status").returncode == 1
    assert "nothing is running" in stack.run("down").stderr
    _run_in_foreground_until_ctrl_c(stack, credentials)


def _run_in_foreground_until_ctrl_c(stack: Stack, credentials: str) -> None:
    process = subprocess.Popen(
        stack.command("up"), env=stack.environment, cwd="/", text=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert any("credentials" in line for line in process.stdout), stack.logs()
    assert (stack.home / "credentials.json").read_text() == credentials
    assert _status_code(stack, json.loads(credentials)["api_key"]) == 200
    pids = stack.pids()
    assert set(pids) == set(CHILDREN)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert said.count("stopped") == len(CHILDREN)
    assert not [pid for pid in pids.values() if is_alive(pid)]


def _status_code(stack: Stack, key: str) -> int:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.get(f"{stack.api_url}/api/auth/status", headers=headers, trust_env=False).status_code


async def _connect(url: str) -> None:
    await asyncpg.connect(url)


def _sockets(pid: int) -> Iterator[list[str]]:
    """Lines of /proc/net/tcp* that are sockets of this process."""
    owned: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:["):
            owned.add(target.removeprefix("socket:[").removesuffix("]"))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in owned:
                yield fields


def _listening_ports(pid: int) -> set[int]:
    return {int(fields[1].rpartition(":")[2], 16) for fields in _sockets(pid) if fields[3] == "0A"}


def _foreign_addresses(pid: int) -> set[str]:
    """Remote addresses that are neither loopback nor unconnected, in the kernel's hexadecimal."""
    remotes = {fields[2].partition(":")[0] for fields in _sockets(pid)}
    loopback = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
    return {remote for remote in remotes if remote not in loopback and remote.strip("0")}
