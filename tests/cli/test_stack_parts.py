"""Parts of the embedded stack alone: identity, keeping, homes, ports, logs, Postgres' place, settings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from cli.stack import logs, postgres
from cli.stack.child import Child, ChildSpec
from cli.stack.errors import AlreadyRunning, NotPossibleHere, PortTaken, StackError
from cli.stack.home import Home
from cli.stack.identity import ProcessIdentity, ProcessRecord, record_myself
from cli.stack.keeper import Keeper
from cli.stack.ports import StackPorts
from cli.stack.postgres import EmbeddedPostgres
from cli.stack.settings import StackSettings, check_environment, environment_for_elsewhere
from cli.stack.temporal import EmbeddedTemporal, TemporalConfig
from tests.cli.stack_harness import free_ports, is_alive
from tests.waiting import eventually


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.make()
    return made


def _said(_line: str) -> None:
    """Nobody listens."""


async def _ready(_pid: int) -> bool:
    return True


def _spec(
    *argv: str, is_ready: Callable[[int], Awaitable[bool]] = _ready, environment: str = "same"
) -> ChildSpec:
    return ChildSpec(
        name="child",
        argv=argv,
        env={"PATH": os.environ["PATH"], "WHICH": environment},
        cwd=Path("/"),
        is_ready=is_ready,
        stop_ladder=((signal.SIGTERM, 5.0),),
    )


def test_a_pid_that_was_given_to_another_process_is_not_the_recorded_one(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    record_myself(path)
    record = ProcessRecord.read(path)
    assert record is not None
    assert record.identity == ProcessIdentity.of(os.getpid())
    for change in ({"start_ticks": 1}, {"boot_id": "another"}, {"pid": 2**22 - 1}):
        path.write_text(json.dumps({**json.loads(record.to_json()), **change}))
        assert ProcessRecord.read(path) is None
    path.write_text("half a rec")
    assert ProcessRecord.read(path) is None


def test_a_child_is_on_record_before_it_runs(home: Home) -> None:
    child = Child.spawn(_spec("sleep", "600"), home)
    found = Child.recorded(home, "child")
    assert found is not None
    assert (found[0].pid, found[1]) == (child.pid, _spec("sleep", "600").digest)
    assert os.getsid(child.pid) == child.pid
    child.send(signal.SIGKILL)


async def test_a_child_that_ends_is_started_again(home: Home) -> None:
    keeper = Keeper(_spec("sleep", "600"), home, _said)
    await keeper.start()
    assert keeper.child is not None
    first = keeper.child.pid
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: keeper.child is not None and keeper.child.pid != first)
    assert keeper.restarts == 1
    assert await keeper.stop()
    assert Child.recorded(home, "child") is None


async def test_a_child_that_cannot_start_fails_with_the_end_of_its_log(home: Home) -> None:
    keeper = Keeper(_spec("sh", "-c", "echo no such luck; exit 3", is_ready=_never), home, _said)
    with pytest.raises(StackError, match=r"child exited with 3.*no such luck"):
        await keeper.start()
    missing = Keeper(_spec("/no/such/program", is_ready=_never), home, _said)
    with pytest.raises(StackError, match="/no/such/program"):
        await missing.start()


async def _never(_pid: int) -> bool:
    return False


async def test_a_living_child_is_taken_over_unless_it_would_be_started_differently(home: Home) -> None:
    left = Child.spawn(_spec("sleep", "600"), home)
    keeper = Keeper(_spec("sleep", "600"), home, _said)
    assert await keeper.adopt()
    assert keeper.child is not None
    assert keeper.child.pid == left.pid
    other = Keeper(_spec("sleep", "600", environment="another"), home, _said)
    assert not await other.adopt()
    assert not is_alive(left.pid)


async def test_a_living_child_that_does_not_answer_is_replaced(home: Home) -> None:
    left = Child.spawn(_spec("sleep", "600"), home)
    assert not await Keeper(_spec("sleep", "600", is_ready=_never), home, _said).adopt()
    assert not is_alive(left.pid)


async def test_a_child_that_will_not_end_is_killed(home: Home) -> None:
    child = Child.spawn(_spec("sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"), home)
    await eventually(lambda: "deaf" in home.log("child").read_text())
    assert await child.stop(((signal.SIGTERM, 0.2),)) == "was killed by SIGKILL"


def test_one_supervisor_a_home(home: Home) -> None:
    assert not home.supervisor_lives()
    with home.lock():
        assert home.supervisor_lives()
        with pytest.raises(AlreadyRunning), home.lock():
            pass
    assert not home.supervisor_lives()


def test_a_home_that_others_can_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(NotPossibleHere, match="can be written by others"):
        Home(shared).make()


def test_sockets_of_a_home_with_a_long_path_have_short_addresses(tmp_path: Path) -> None:
    home = Home(tmp_path / ("deep" * 30) / "home")
    home.make()
    try:
        for path in (home.gateway_socket, home.worker_socket, home.short_path / "pg" / ".s.PGSQL.5432.lock"):
            assert len(os.fsencode(path)) < 108
        assert home.gateway_socket.parent.samefile(home.run / "gateway")
    finally:
        home.short_path.unlink()


def test_a_database_url_escapes_the_home(tmp_path: Path) -> None:
    from sqlalchemy import make_url

    home = Home(tmp_path / "a b&c=d")
    assert make_url(home.database_url).query["passfile"] == str(home.pgpass)


def test_the_host_keeps_its_name(home: Home) -> None:
    assert home.host_id() == home.host_id()


def test_a_busy_port_is_named_with_the_variable_that_moves_it() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        ports = StackPorts(api=port, gateway=1, temporal=2, temporal_ui=3)
        with pytest.raises(PortTaken, match=rf"port {port}, for api.*EVOLVE_API_PORT"):
            ports.check(running={"gateway", "temporal"})
        ports.check(running={"api", "gateway", "temporal"})


def test_two_processes_cannot_share_a_port() -> None:
    ports = StackPorts(api=9000, gateway=9000, temporal=2, temporal_ui=3)
    with pytest.raises(PortTaken, match="EVOLVE_API_PORT and EVOLVE_GATEWAY_PORT are both 9000"):
        ports.check(running={"api", "gateway", "temporal"})


def test_a_variable_that_would_be_passed_over_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVOLVE_DATABASE_URL", "postgresql://elsewhere/evolve")
    with pytest.raises(StackError, match="EVOLVE_DATABASE_URL is set"):
        check_environment()


def test_paths_that_a_person_gives_as_they_stand_reach_children_that_run_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVOLVE_SCRIPTED_UPSTREAM", "examples/scripted")
    monkeypatch.delenv("EVOLVE_BUNDLES_DIR", raising=False)
    environment = environment_for_elsewhere()
    assert environment["EVOLVE_SCRIPTED_UPSTREAM"] == str(tmp_path / "examples/scripted")
    assert "EVOLVE_BUNDLES_DIR" not in environment


def test_a_long_log_is_rotated_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    with open(log, "ab", buffering=0) as writer:
        for number in range(logs.KEPT_LOGS + 2):
            writer.write(b"%d" % number * 200)
            logs.rotate(log, max_bytes=100)
        writer.write(b"end")
    assert log.read_bytes() == b"end"
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["x.log", *(f"x.log.{number}" for number in range(1, logs.KEPT_LOGS + 1))]
    assert (tmp_path / "x.log.1").read_bytes().startswith(b"5")


def test_the_dev_server_is_set_up_from_its_one_file(home: Home) -> None:
    config = TemporalConfig.load()
    assert list(config.search_attributes.values()).count("Keyword") <= 10
    arguments = EmbeddedTemporal.prepare(home, StackSettings(temporal_port=7001)).spec().argv
    assert "7001" in arguments
    assert str(config.ports.ui) in arguments
    assert "--ui-disable-news-fetch" in arguments
    assert "system.enableCancelActivityWorkerCommand=true" in arguments


async def test_a_new_search_attribute_reaches_an_old_namespace_and_its_retention_stays(home: Home) -> None:
    port, ui_port = free_ports(2)
    temporal = EmbeddedTemporal.prepare(home, StackSettings(temporal_port=port, temporal_ui_port=ui_port))
    for attribute in ("First", "Second"):
        temporal.config.search_attributes[attribute] = "Keyword"
        keeper = Keeper(temporal.spec(), home, _said)
        await keeper.start()
        await temporal.configure()
        client = await Client.connect(temporal.ports.temporal_address, namespace="evolve")
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace="evolve")
        )
        described = await client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace="evolve")
        )
        assert set(temporal.config.search_attributes) <= set(listed.custom_attributes)
        assert described.config.workflow_execution_retention_ttl.seconds == 168 * 3600
        await keeper.stop()


def test_a_pid_file_whose_pid_is_another_process_is_forgotten(home: Home) -> None:
    home.pg_data.mkdir()
    pid_file = home.pg_data / "postmaster.pid"
    server = EmbeddedPostgres(home, Path("/nowhere"), None)
    pid_file.write_text(f"{os.getpid()}\n")
    prepare = server.spec().prepare
    assert prepare is not None
    prepare()
    assert not pid_file.exists()


def test_a_pid_file_of_a_living_server_is_kept(home: Home) -> None:
    home.pg_data.mkdir()
    server = subprocess.Popen(("sleep", "600"), cwd=home.pg_data)
    pid_file = home.pg_data / "postmaster.pid"
    pid_file.write_text(f"{server.pid}\n")
    prepare = EmbeddedPostgres(home, Path("/nowhere"), None).spec().prepare
    assert prepare is not None
    prepare()
    assert pid_file.exists()
    server.kill()
    server.wait()


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A directory that every user can enter, as `/var/lib` is."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.mark.root
def test_root_copies_binaries_that_its_server_could_not_reach(
    home: Home, open_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = open_place / "root"
    private.mkdir(mode=0o700)
    wheel = postgres.find_package()
    hidden = private / wheel.name
    shutil.copytree(wheel / postgres.INSTALL, hidden / postgres.INSTALL)
    shutil.copytree(wheel.parent / f"{wheel.name}.libs", private / f"{wheel.name}.libs")
    monkeypatch.setattr(postgres, "find_package", lambda: hidden)
    monkeypatch.setattr(postgres, "SHARED_COPIES", open_place / "shared")
    binaries, uid = postgres.reachable_binaries(home)
    assert uid in postgres.SERVER_UIDS
    assert binaries.is_relative_to(open_place / "shared")
    assert private.stat().st_mode & 0o777 == 0o700
    assert postgres.reachable_binaries(home)[0] == binaries


def test_help_imports_nothing_of_the_server() -> None:
    code = (
        "import sys; from cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'httpx', 'pydantic', 'yaml', 'sqlalchemy', 'fastapi', 'temporalio', 'litellm', 'aiohttp'}\n"
        "sys.exit(sorted(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run((sys.executable, "-P", "-c", code), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "This machine's stack" in done.stdout


def test_serve_names_a_wrong_variable_and_not_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {**os.environ, "EVOLVE_API_PORT": "notaport"}
    environment.pop("EVOLVE_DATABASE_URL", None)
    done = subprocess.run(
        (sys.executable, "-P", "-m", "cli.main", "serve", "api"),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "EVOLVE_API_PORT" in done.stderr
    assert "EVOLVE_DATABASE_URL" in done.stderr
    assert "notaport" not in done.stderr
