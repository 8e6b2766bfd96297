"""What every provider's boxes promise. A provider's own test class inherits it and gives the `bench`.

The image of the bench has sh, python3 and ps-like files in /proc, a user `nobody` and WORKDIR /app.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import tarfile
import uuid
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.sandboxes import process
from activities.sandboxes.base import Box, BoxSpec, BoxTag, ImageRef, NetworkMode, ProcessKey, SandboxProvider
from activities.sandboxes.process import Chunk, ExitStatus, ProcessSpec
from domain.errors import ExecChdirFailure, ProviderCreateFailure, SandboxDeath, TaskError

ODD_NAMES = ("with space", "üñí", "new\nline", "-dash", "quote'\"$x")


@dataclass
class Bench:
    """A provider, an image of it, and boxes that are destroyed at the end."""

    provider: SandboxProvider
    image: ImageRef
    installation_id: str
    made: list[str] = field(default_factory=list[str])

    def spec(self, *, fence: int = 1, trial_id: str | None = None, **other: Any) -> BoxSpec:
        tag = BoxTag(self.installation_id, "job", trial_id or str(uuid.uuid4()), 1, 0, "agent", fence)
        self.made.append(tag.name)
        defaults: dict[str, Any] = {"network_mode": "no-network", "lifetime_sec": 600.0}
        return BoxSpec(tag=tag, image=self.image, **(defaults | other))

    async def box(self, **other: Any) -> Box:
        return await self.provider.create(self.spec(**other))

    async def clean(self) -> None:
        await asyncio.gather(*(self.provider.destroy(name) for name in self.made))


async def image_stays_while_a_box_needs_it(bench: Bench) -> None:
    """Of an image that no other test needs."""
    box = await bench.box()
    [image] = [each for each in await bench.provider.images() if each.id == bench.image.id]
    assert not await bench.provider.remove_image(image.name)
    await bench.provider.destroy(box.box_id)
    assert await bench.provider.remove_image(image.name)
    assert await bench.provider.remove_image(image.name)
    assert bench.image.id not in [each.id for each in await bench.provider.images()]


@asynccontextmanager
async def answering_gateway(socket_path: Path) -> AsyncIterator[None]:
    """A gateway that answers whatever is said with `gateway`, on a relay's unix socket."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"gateway")
        writer.close()

    server = await asyncio.start_unix_server(answer, socket_path)
    async with server:
        yield


async def sh(box: Box, script: str, **options: Any) -> str:
    """What a script prints; fails the test when the script fails."""
    result = await box.run(["sh", "-c", script], **options)
    assert result.exit_code == 0, (result, script)
    return result.stdout.decode()


async def keys(box: Box) -> set[ProcessKey]:
    return {(each.pid, each.start_ticks) for each in await box.processes()}


async def contents(box: Box, path: str) -> dict[str, tarfile.TarInfo]:
    """Members of the tree at `path`, by clean name."""
    data = b"".join([chunk async for chunk in box.get_tar(path)])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name.removeprefix("./"): member for member in tar if member.name != "."}


def tar_of(members: dict[str, bytes | None], *, mode: int = 0o640, uid: int = 0) -> bytes:
    """Files by name, None for a folder."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.mode, member.uid, member.gid = mode, uid, uid
            if data is None:
                member.type, member.mode = tarfile.DIRTYPE, 0o750
            else:
                member.size = len(data)
            tar.addfile(member, io.BytesIO(data or b""))
    return target.getvalue()


class MakingBoxes:
    async def test_a_second_create_finds_what_the_first_made(self, bench: Bench) -> None:
        first = bench.spec(fence=1)
        box = await bench.provider.create(first)
        await box.write("/app/mark", b"here")
        later = bench.spec(fence=2, trial_id=first.tag.trial_id)
        again = await bench.provider.create(later)
        assert again.box_id == box.box_id
        assert await again.read("/app/mark") == b"here"

    async def test_creates_at_the_same_time_make_one_box(self, bench: Bench) -> None:
        spec = bench.spec()
        boxes = await asyncio.gather(*(bench.provider.create(spec) for _ in range(4)))
        await boxes[0].write("/app/mark", b"one")
        assert [await box.read("/app/mark") for box in boxes] == [b"one"] * 4
        listed = [each for each in await bench.provider.list(bench.installation_id) if each.tag == spec.tag]
        assert len(listed) == 1

    async def test_the_box_of_a_later_try_is_not_given_to_an_earlier_one(self, bench: Bench) -> None:
        later = bench.spec(fence=2)
        box = await bench.provider.create(later)
        with pytest.raises(ProviderCreateFailure, match="later try"):
            await bench.provider.create(bench.spec(fence=1, trial_id=later.tag.trial_id))
        assert (await box.run(["true"])).exit_code == 0

    async def test_a_box_is_listed_with_its_tag_until_it_is_destroyed(self, bench: Bench) -> None:
        spec = bench.spec()
        box = await bench.provider.create(spec)
        [listed] = [each for each in await bench.provider.list(bench.installation_id) if each.tag == spec.tag]
        assert (listed.box_id, listed.is_running) == (box.box_id, True)
        assert abs(datetime.now(UTC) - listed.made_at) < timedelta(minutes=1)
        assert await bench.provider.list(str(uuid.uuid4())) == []
        await bench.provider.destroy(box.box_id)
        assert spec.tag not in [each.tag for each in await bench.provider.list(bench.installation_id)]

    async def test_a_destroyed_box_is_dead_to_every_call_and_destroying_it_again_is_done(
        self, bench: Bench
    ) -> None:
        box = await bench.box()
        await bench.provider.destroy(box.box_id)
        await bench.provider.destroy(box.box_id)
        with pytest.raises(SandboxDeath):
            await bench.provider.attach(box.box_id)
        with pytest.raises(SandboxDeath):
            await box.run(["true"])
        with pytest.raises(SandboxDeath):
            await box.read("/etc/passwd")
        with pytest.raises(SandboxDeath):
            await box.processes()

    async def test_a_stopped_box_runs_no_more_and_is_there_to_be_destroyed(self, bench: Bench) -> None:
        spec = bench.spec()
        box = await bench.provider.create(spec)
        await bench.provider.stop(box.box_id)
        [listed] = [each for each in await bench.provider.list(bench.installation_id) if each.tag == spec.tag]
        assert not listed.is_running
        await bench.provider.stop(box.box_id)
        await bench.provider.destroy(box.box_id)
        await bench.provider.stop(box.box_id)
        assert spec.tag not in [each.tag for each in await bench.provider.list(bench.installation_id)]

    async def test_a_box_that_never_was_is_dead(self, bench: Bench) -> None:
        with pytest.raises(SandboxDeath):
            await bench.provider.attach(f"evolve-{uuid.uuid4()}-1-0-agent")
        await bench.provider.destroy(f"evolve-{uuid.uuid4()}-1-0-agent")

    async def test_literals_land_as_they_were_written(self, bench: Bench) -> None:
        env = {"PLAIN": "a", "ODD": "b c'\"$HOME\n`x`", "EMPTY": ""}
        box = await bench.box(env=env)
        printed = await sh(
            box, "python3 -c 'import json,os; print(json.dumps(dict(os.environ)))'", env={"MORE": "1"}
        )
        assert json.loads(printed).items() >= {**env, "MORE": "1"}.items()

    async def test_the_declared_workdir_is_where_commands_run(self, bench: Bench) -> None:
        box = await bench.box(workdir="/srv/work here")
        assert box.workdir == "/srv/work here"
        assert await sh(box, "pwd") == "/srv/work here\n"

    async def test_the_images_workdir_counts_when_none_is_declared(self, bench: Bench) -> None:
        box = await bench.box()
        assert box.workdir == "/app"
        assert await sh(box, "pwd") == "/app\n"
        assert (await bench.provider.attach(box.box_id)).workdir == "/app"


class RunningCommands:
    async def test_output_and_exit_code_are_told_apart(self, bench: Bench) -> None:
        box = await bench.box()
        result = await box.run(["sh", "-c", "echo out; echo err >&2; exit 7"])
        assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")

    async def test_a_signal_is_128_and_its_number(self, bench: Bench) -> None:
        box = await bench.box()
        assert (await box.run(["sh", "-c", "kill -9 $$"])).exit_code == 128 + signal.SIGKILL

    async def test_stdin_is_given_whole_and_ends(self, bench: Bench) -> None:
        box = await bench.box()
        data = b"0123456789" * 100_000
        assert (await box.run(["cat"], stdin=data)).stdout == data
        assert (await box.run(["true"], stdin=data)).exit_code == 0

    async def test_a_command_runs_as_its_user(self, bench: Bench) -> None:
        box = await bench.box()
        assert await sh(box, "id -u") == "0\n"
        assert await sh(box, "id -un", user="nobody") == "nobody\n"
        with pytest.raises(TaskError, match="nosuchuser"):
            await box.run(["true"], user="nosuchuser")

    async def test_a_missing_directory_is_named(self, bench: Bench) -> None:
        box = await bench.box()
        with pytest.raises(ExecChdirFailure, match="/nope"):
            await box.run(["true"], cwd="/nope")

    async def test_a_command_that_takes_too_long_is_killed(self, bench: Bench) -> None:
        box = await bench.box()
        before = await keys(box)
        with pytest.raises(TimeoutError):
            await box.run(["sh", "-c", "sleep 600 & sleep 600"], timeout_sec=0.3)
        await _until(lambda: _runs_only(box, before))

    async def test_a_detached_command_is_followed_to_its_end(self, bench: Bench) -> None:
        box = await bench.box()
        script = "cat; echo $ODD; echo problem >&2; exit 5"
        spec = ProcessSpec("agent", ["sh", "-c", script], env={"ODD": "a 'b'"}, stdin=b"said\n")
        await process.start(box, spec)
        items = [item async for item in process.follow(box, "agent", {})]
        output = dict.fromkeys(("out", "err"), b"")
        for item in items:
            if isinstance(item, Chunk):
                output[item.stream] += item.data
        assert output == {"out": b"said\na 'b'\n", "err": b"problem\n"}
        assert isinstance(items[-1], ExitStatus)
        assert items[-1].exit_code == 5


class MovingFiles:
    async def test_a_part_of_a_file_is_read(self, bench: Bench) -> None:
        box = await bench.box()
        data = bytes(range(256)) * 1024
        await box.write("/app/data", data)
        assert await box.read("/app/data") == data
        assert await box.read("/app/data", offset=70_001, limit=5) == data[70_001:70_006]
        assert await box.read("/app/data", offset=len(data) - 3) == data[-3:]
        assert await box.read("/app/data", offset=len(data) + 10) == b""

    async def test_what_is_no_regular_file_is_not_found(self, bench: Bench) -> None:
        box = await bench.box()
        await sh(box, "mkdir d; mkfifo f; ln -s /nowhere l")
        for name in ("absent", "d", "f", "l", "d/absent", "/etc/passwd/x"):
            with pytest.raises(FileNotFoundError):
                await box.read(f"/app/{name}")

    async def test_a_link_does_not_lead_out_of_the_box(self, bench: Bench, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("of the host")
        box = await bench.box()
        await sh(box, f"ln -s {secret} a; ln -s ../../../../../../..{secret} b; ln -s /proc/1/root c")
        for name in ("a", "b", f"c{secret}"):
            with pytest.raises(FileNotFoundError):
                await box.read(f"/app/{name}")
        await sh(box, f"mkdir -p {tmp_path}/in; ln -s {tmp_path}/in d")
        await box.write("/app/d/written", b"inside")
        assert await sh(box, f"cat {tmp_path}/in/written") == "inside"
        assert not (tmp_path / "in").exists()

    async def test_a_written_file_has_its_mode_and_owner(self, bench: Bench) -> None:
        box = await bench.box()
        await box.write("/app/tool", b"#!/bin/sh\n", mode=0o750, user="nobody")
        assert await sh(box, "stat -c '%a %U' tool") == "750 nobody\n"
        await box.write("/app/tool", b"", mode=0o600)
        assert await sh(box, "stat -c '%a %U %s' tool") == "600 root 0\n"

    async def test_writing_replaces_a_link_and_not_what_it_leads_to(self, bench: Bench) -> None:
        box = await bench.box()
        await sh(box, "echo kept >kept; ln -s kept link")
        await box.write("/app/link", b"new")
        assert await sh(box, "cat kept; cat link") == "kept\nnew"

    async def test_a_file_is_written_where_no_folder_was(self, bench: Bench) -> None:
        box = await bench.box()
        await box.write("/app/a/b c/d", b"deep")
        assert await box.read("/app/a/b c/d") == b"deep"

    async def test_a_tree_goes_in_and_comes_out_as_it_was(self, bench: Bench) -> None:
        box = await bench.box()
        members: dict[str, bytes | None] = {"folder": None, "folder/empty": None}
        members |= {f"folder/{name}": name.encode() for name in ODD_NAMES}
        await box.put_tar("/made/for this", tar_of(members, uid=1234))
        assert await box.read("/made/for this/folder/new\nline") == b"new\nline"
        found = await contents(box, "/made/for this")
        assert {name: member.isdir() for name, member in found.items()} == {
            name: data is None for name, data in members.items()
        }
        assert {(member.uid, member.gid) for member in found.values()} == {(0, 0)}
        assert found["folder"].mode & 0o7777 == 0o750
        assert found["folder/üñí"].mode & 0o7777 == 0o640

    async def test_links_come_out_as_links(self, bench: Bench) -> None:
        box = await bench.box()
        await sh(box, "mkdir t; cd t; echo x >file; ln file hard; ln -s /etc/passwd out; ln -s . loop")
        found = await contents(box, "/app/t")
        assert found["out"].linkname == "/etc/passwd"
        assert found["loop"].issym()
        assert {found["file"].islnk(), found["hard"].islnk()} == {True, False}

    async def test_a_big_tree_streams_and_may_be_left_early(self, bench: Bench) -> None:
        box = await bench.box()
        await sh(box, "mkdir big; head -c 20000000 /dev/zero >big/zeros")
        stream = box.get_tar("/app/big")
        first = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined] - an async generator in both providers
        assert len(first) < 20_000_000
        size = sum([len(chunk) async for chunk in box.get_tar("/app/big")])
        assert size > 20_000_000

    async def test_a_single_file_is_a_tree_of_one(self, bench: Bench) -> None:
        box = await bench.box()
        await box.write("/app/one", b"1")
        assert list(await contents(box, "/app/one")) == ["one"]

    async def test_an_absent_tree_is_not_found(self, bench: Bench) -> None:
        box = await bench.box()
        with pytest.raises(FileNotFoundError):
            await contents(box, "/app/absent")


# Ignores TERM, leaves its session, and goes on writing.
ESCAPEE = """
trap '' TERM INT HUP
setsid sh -c 'trap "" TERM; (while :; do echo x >>/app/grows; sleep 0.01; done) &' &
(setsid sleep 1000 &) &
python3 -c 'import os,time,signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
time.sleep(1000)' &
"""
# Forks all the time, at a rate that leaves the machine to others: a real bomb stopped it for minutes.
BREEDERS = "for i in 1 2 3 4 5 6 7 8; do (while :; do sleep 0.05 & wait $!; done) & done; sleep 600"


START_SLEEP = """
sleep 876 >/dev/null 2>&1 &
until grep -q sleep /proc/$!/comm; do :; done
echo $!
"""


class EndingProcesses:
    async def test_processes_are_named_by_pid_and_start(self, bench: Bench) -> None:
        box = await bench.box()
        before = await keys(box)
        pid = int(await sh(box, START_SLEEP))
        [found] = [each for each in await box.processes() if (each.pid, each.start_ticks) not in before]
        assert (found.pid, found.command) == (pid, "sleep 876")
        stat = await sh(box, f"cat /proc/{pid}/stat")
        assert found.start_ticks == int(stat.rpartition(") ")[2].split()[19])

    async def test_a_sweep_leaves_what_is_kept_and_nothing_else(self, bench: Bench) -> None:
        box = await bench.box()
        await sh(box, "sleep 999 >/dev/null 2>&1 &")
        keep = await keys(box)
        await sh(box, ESCAPEE, stdin=None)
        await _until(lambda: box.read("/app/grows"))
        assert await box.sweep(keep) >= 3
        assert await keys(box) == keep
        size = len(await box.read("/app/grows"))
        await sh(box, "sleep 0.1")
        assert len(await box.read("/app/grows")) == size

    async def test_a_sweep_that_keeps_nothing_leaves_the_box_usable(self, bench: Bench) -> None:
        box = await bench.box()
        await sh(box, "sleep 999 >/dev/null 2>&1 &")
        assert await box.sweep(()) >= 1
        assert "sleep 999" not in [each.command for each in await box.processes()]
        assert (await box.run(["true"])).exit_code == 0

    async def test_nothing_forks_away_from_a_sweep(self, bench: Bench) -> None:
        box = await bench.box()
        keep = await keys(box)
        await process.start(box, ProcessSpec("breeders", ["sh", "-c", BREEDERS]))
        await _until(lambda: _has_processes(box, 12))
        await box.sweep(keep)
        assert await keys(box) == keep
        assert (await box.run(["true"])).exit_code == 0

    async def test_an_agent_that_kills_everything_ends_at_most_its_own_box(self, bench: Bench) -> None:
        box, other = await asyncio.gather(bench.box(), bench.box())
        await sh(box, "kill -9 1; kill -TERM 1; sleep 0.1")
        assert (await box.run(["true"])).exit_code == 0
        try:
            await box.run(["sh", "-c", "kill -9 -1"])
            await box.run(["true"])
        except SandboxDeath:
            with pytest.raises(SandboxDeath):
                await bench.provider.attach(box.box_id)
        assert (await other.run(["true"])).exit_code == 0


async def _until(look: Any) -> None:
    """Wait a minute at most until an awaited look returns something true; `FileNotFoundError` is not yet."""
    async with asyncio.timeout(60):
        while True:
            try:
                if await look():
                    return
            except FileNotFoundError:
                pass
            await asyncio.sleep(0.02)


async def _runs_only(box: Box, wanted: Collection[ProcessKey]) -> bool:
    """What was killed may still be on its way out of the process table."""
    return await keys(box) == set(wanted)


async def _has_processes(box: Box, count: int) -> bool:
    return len(await box.processes()) >= count


# What a box must not reach, tried from inside: prints the names of those that answered.
PROBE = """
import json, socket, sys
targets, device = json.loads(sys.argv[1]), sys.argv[2]
reached = []
def attempt(name, family, kind, address, bind_to=None):
    try:
        with socket.socket(family, kind) as s:
            s.settimeout(1.0)
            if bind_to:
                s.setsockopt(socket.SOL_SOCKET, 25, bind_to.encode() + b"\\0")
            s.connect(address)
            s.sendall(b"x")
            if kind == socket.SOCK_STREAM or s.recv(10):
                reached.append(name)
    except OSError:
        pass
for name, family, kind, address in targets:
    family, kind = getattr(socket, family), getattr(socket, kind)
    address = "\\0" + address[1:] if isinstance(address, str) and address[:1] == "@" else address
    address = tuple(address) if isinstance(address, list) else address
    attempt(name, family, kind, address)
    if device and family == socket.AF_INET:
        attempt(name + " through " + device, family, kind, address, device)
print(json.dumps(reached))
"""


@dataclass(frozen=True)
class Target:
    """Something that listens, which a box must not reach; `address` is as `socket.connect` takes it."""

    name: str
    family: str
    kind: str
    address: Any


async def reached_from(box: Box, targets: list[Target]) -> list[str]:
    """The names of those that answered from inside the box, also by a socket bound to its first device."""
    devices = (
        await sh(box, "ls /sys/class/net 2>/dev/null || tail -n +3 /proc/net/dev | cut -d: -f1")
    ).split()
    device = next((each for each in devices if each != "lo"), "lo")
    listed = json.dumps([[each.name, each.family, each.kind, each.address] for each in targets])
    result = await box.run(["python3", "-c", PROBE, listed, device], timeout_sec=120)
    assert result.exit_code == 0, result
    return json.loads(result.stdout)


SPEAK_TO_RELAY = """
import socket
with socket.create_connection(("127.0.0.1", 8801), 5) as s:
    s.sendall(b"x")
    print(s.recv(100).decode())
"""


async def relay_answer(box: Box) -> str:
    """What the gateway says through the relay."""
    result = await box.run(["python3", "-c", SPEAK_TO_RELAY])
    return result.stdout.decode().strip()


BOTH_MODES: tuple[NetworkMode, ...] = ("no-network", "public")
