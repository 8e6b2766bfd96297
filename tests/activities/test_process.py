"""Detached commands, in real boxes of the local provider: started once, followed, ended."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from activities.sandboxes import process
from activities.sandboxes.base import Box
from activities.sandboxes.process import Chunk, ExitStatus, ProcessSpec, Running, shell_exports
from domain.errors import ExecChdirFailure, TaskError
from tests.activities.box_conformance import ESCAPEE, Bench, keys, sh
from tests.activities.local_bench import clean, local_bench


@pytest_asyncio.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with local_bench(tmp_path_factory.mktemp("local")) as bench:
        yield bench


@pytest_asyncio.fixture
async def box(shared: Bench) -> AsyncIterator[Box]:
    yield await shared.box()
    await clean(shared)


class CommandsOnly:
    """The box as a cloud's: nothing of it is reached but by its own methods."""

    def __init__(self, box: Box) -> None:
        self.workdir = box.workdir
        self.run: Any = box.run
        self.put_tar = box.put_tar
        self.processes = box.processes
        self.sweep = box.sweep


@pytest.fixture(params=["from outside", "by commands"])
def seen(request: pytest.FixtureRequest, box: Box) -> Any:
    """The same box, read past it and by commands in it."""
    return box if request.param == "from outside" else CommandsOnly(box)


def script(text: str, **other: Any) -> ProcessSpec:
    return ProcessSpec("agent", ["sh", "-c", text], **other)


async def outcome(
    box: Any, name: str = "agent", offsets: dict[str, int] | None = None
) -> tuple[bytes, bytes, ExitStatus]:
    """Output and end of a process; fails when a chunk does not begin where the one before ended."""
    at = {"out": 0, "err": 0} | (offsets or {})
    data = {"out": b"", "err": b""}
    end: ExitStatus | None = None
    async for item in process.follow(box, name, at):
        if isinstance(item, Chunk):
            assert item.offset == at[item.stream]
            data[item.stream] += item.data
            at[item.stream] += len(item.data)
        else:
            end = item
    assert end is not None
    return data["out"], data["err"], end


async def running(box: Any, *, words: str) -> None:
    """Return when a process with these words runs in the box."""
    while not any(words in each.command for each in await box.processes()):
        pass


async def sleepers(box: Any, count: int) -> None:
    """Return when so many `sleep 600` run in the box, themselves and not who is to start them."""
    while [each.command for each in await box.processes()].count("sleep 600") < count:
        pass


async def test_output_exit_code_and_times_are_told(seen: Any) -> None:
    await process.start(seen, script("echo out; echo err >&2; exit 7"))
    out, err, end = await outcome(seen)
    assert (out, err, end.exit_code) == (b"out\n", b"err\n", 7)
    assert (end.is_deadline, end.was_killed) == (False, False)
    assert end.started_at is not None
    assert end.finished_at is not None
    assert end.started_at <= end.finished_at


@pytest.mark.parametrize(("text", "code"), [("kill -9 $$", 137), ("kill $$", 143), ("nosuchprogram", 127)])
async def test_ends_are_told_as_a_shell_does(box: Box, text: str, code: int) -> None:
    await process.start(box, script(text))
    assert (await outcome(box))[2].exit_code == code


async def test_a_second_start_does_nothing(box: Box) -> None:
    await asyncio.gather(*(process.start(box, script("echo x >>/app/ran; sleep 0.2")) for _ in range(4)))
    await outcome(box)
    await process.start(box, script("echo x >>/app/ran"))
    assert await box.read("/app/ran") == b"x\n"


async def test_the_state_is_told_at_any_time(seen: Any) -> None:
    assert await process.status(seen, "agent") is None
    await process.start(seen, script("until [ -e /app/go ]; do sleep 0.02; done; exit 3"))
    assert isinstance(await process.status(seen, "agent"), Running)
    await sh(seen, "touch /app/go")
    assert (await outcome(seen))[2].exit_code == 3
    ended = await process.status(seen, "agent")
    assert isinstance(ended, ExitStatus)
    assert ended.exit_code == 3


async def test_stdin_is_given_whole_or_is_empty(box: Box) -> None:
    await process.start(box, script("cat; echo end", stdin=b"line\n" * 100_000))
    assert (await outcome(box))[0] == b"line\n" * 100_000 + b"end\n"
    await process.start(box, ProcessSpec("second", ["cat"]))
    assert (await outcome(box, "second"))[0] == b""


async def test_values_of_any_kind_arrive_and_are_kept_nowhere(box: Box) -> None:
    odd = "a'b\"c\n$HOME `x` \\ \u00fc\n"
    await process.start(box, script('printf %s "$ODD"; sleep 600', env={"ODD": odd, "EMPTY": ""}))
    stream = process.follow(box, "agent", {})
    assert await anext(stream) == Chunk("out", 0, odd.encode())
    assert await sh(box, "cat /.evolve/run/agent/env; ls /.evolve/run") == "agent\n"
    lines = await sh(box, "cat /proc/[0-9]*/cmdline")
    assert "a'b" not in lines


def test_a_name_that_no_shell_can_set_is_refused() -> None:
    with pytest.raises(TaskError, match=r"'a\.b'"):
        shell_exports({"a.b": "1"})
    with pytest.raises(TaskError, match="NUL"):
        shell_exports({"NUL": "\0"})


async def test_a_missing_directory_is_the_boxs_fault_by_name(seen: Any) -> None:
    await process.start(seen, script("true", cwd="/nope"))
    with pytest.raises(ExecChdirFailure, match="agent"):
        await outcome(seen)


async def test_a_missing_user_is_the_tasks_fault(seen: Any) -> None:
    await process.start(seen, script("true", user="nosuchuser"))
    with pytest.raises(TaskError, match="user"):
        await outcome(seen)


@pytest.mark.root
async def test_another_user_runs_the_command_and_cannot_replace_its_records(box: Box) -> None:
    text = "id -un; echo $HOME; echo >/.evolve/run/agent/rc; mv /.evolve/run/agent /tmp/x; cat /dev/stdin"
    await process.start(box, script(text, user="nobody", cwd="/tmp", stdin=b"in\n"))
    out, err, end = await outcome(box)
    assert out == b"nobody\n/nonexistent\nin\n"
    assert b"ermission denied" in err
    assert end.exit_code == 0


async def test_signals_that_a_shell_ignores_in_the_background_are_not_ignored(box: Box) -> None:
    await process.start(box, script("grep SigIgn /proc/self/status; umask; pwd"))
    _, ignored, umask, cwd = (await outcome(box))[0].split()
    assert int(ignored, 16) & 0x7FFFFFFF == 0
    assert (umask, cwd) == (b"0022", b"/app")


async def test_much_output_comes_through_whole(seen: Any) -> None:
    await process.start(seen, script("seq 3000000; seq 100000 >&2"))
    out, err, _ = await outcome(seen)
    assert hashlib.sha256(out).digest() == hashlib.sha256(_numbers(3_000_000)).digest()
    assert err == _numbers(100_000)


def _numbers(count: int) -> bytes:
    return b"".join(b"%d\n" % n for n in range(1, count + 1))


async def test_a_follower_goes_on_from_where_another_was(seen: Any) -> None:
    await process.start(seen, script("seq 50000; seq 20000 >&2"))
    whole, errors, _ = await outcome(seen)
    out, err, end = await outcome(seen, offsets={"out": 100_001, "err": 65_536})
    assert (out, err, end.exit_code) == (whole[100_001:], errors[65_536:], 0)


async def test_what_was_said_stays_said_when_a_script_opens_its_output_anew(seen: Any) -> None:
    text = "echo first >&2; echo second >/dev/stderr; echo third | tee /dev/stderr; echo last >&2"
    await process.start(seen, script(text))
    out, err, _ = await outcome(seen)
    assert (out, err) == (b"third\n", b"first\nsecond\nthird\nlast\n")


async def test_output_that_looks_like_the_beginning_of_the_mark_is_output(seen: Any) -> None:
    await process.start(seen, script("printf 'a\\000\\001evolve-end-\\000'; sleep 0.3; printf '\\000'"))
    assert (await outcome(seen))[0] == b"a\0\1evolve-end-\0\0"


async def test_an_agent_that_kills_what_collects_its_output_is_heard_all_the_same(box: Box) -> None:
    await process.start(box, script("seq 1000; pkill cat; seq 1000; pkill -9 cat; sleep 0.1; seq 1000"))
    out = (await outcome(box))[0]
    assert out.startswith(_numbers(1_000))
    assert out.endswith(_numbers(1_000))


async def test_a_service_that_is_left_may_write_on_and_holds_nobody_up(seen: Any) -> None:
    await process.start(seen, script("(while :; do echo more; sleep 0.01; done) & sleep 0.1; echo done >&2"))
    _, err, end = await outcome(seen)
    assert (err, end.exit_code) == (b"done\n", 0)
    assert len(await seen.processes()) > 1


async def test_at_the_limit_the_group_is_asked_and_then_all_is_killed(box: Box) -> None:
    await sh(box, "sleep 998 >/dev/null 2>&1 &")
    keep = await keys(box)
    text = ESCAPEE.replace("&\n", "& \n") + "\nwait; sleep 1000"
    await process.start(box, script(text, deadline_sec=1, grace_sec=1))
    _, _, end = await outcome(box)
    assert (end.is_deadline, end.was_killed) == (True, False)
    assert await keys(box) == keep
    size = len(await box.read("/app/grows"))
    await sh(box, "sleep 0.1")
    assert len(await box.read("/app/grows")) == size


async def test_a_command_that_obeys_ends_at_the_limit_without_the_grace(box: Box) -> None:
    await process.start(
        box, script("trap 'echo bye; exit 9' TERM; sleep 99 & wait", deadline_sec=1, grace_sec=60)
    )
    out, _, end = await outcome(box)
    assert (out, end.exit_code, end.is_deadline) == (b"bye\n", 9, True)


async def test_killing_sleepers_does_not_bring_the_limit_nearer(box: Box) -> None:
    text = "for n in 1 2 3; do pkill sleep; pkill -9 sleep; done; sleep 0.5; echo alive"
    await process.start(box, script(text, deadline_sec=30))
    out, _, end = await outcome(box)
    assert (out, end.is_deadline) == (b"alive\n", False)


async def test_what_a_command_leaves_running_goes_on(box: Box) -> None:
    await process.start(box, script("sleep 997 & echo done", deadline_sec=60))
    assert (await outcome(box))[2].exit_code == 0
    assert "sleep 997" in [each.command for each in await box.processes()]


async def test_a_cancel_ends_all_and_the_follower_is_told(seen: Any) -> None:
    keep = await process.baseline(seen)
    await process.start(seen, script("sleep 600 & setsid sleep 600 & sleep 600"))
    await sleepers(seen, 3)
    following = asyncio.create_task(outcome(seen))
    assert await process.cancel(seen, keep) >= 4
    _, _, end = await following
    assert (end.exit_code, end.was_killed, end.is_deadline) == (None, True, False)
    assert await process.baseline(seen) == keep


async def test_a_command_killed_with_its_runner_has_no_exit_code(box: Box) -> None:
    await process.start(box, script("echo $$ >/app/pid; sleep 600"))
    await running(box, words="sleep 600")
    await box.run(["sh", "-c", "kill -9 -1"])
    end = (await outcome(box))[2]
    assert (end.exit_code, end.was_killed) == (None, True)


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox sh"])
async def test_the_runner_runs_in_every_shell(box: Box, shell: str) -> None:
    program = shell.split()[0]
    if (await box.run(["sh", "-c", f"command -v {program}"])).exit_code != 0:
        pytest.fail(f"this machine has no {program}: `make test` installs it")
    await box.write("/opt/shell/sh", f'#!/bin/{program}\nexec {shell} "$@"\n'.encode(), mode=0o755)
    path = {"PATH": "/opt/shell:/usr/sbin:/usr/bin:/sbin:/bin"}
    limited = ProcessSpec("limited", ["sh", "-c", "trap '' TERM; sleep 600"], deadline_sec=1, grace_sec=1)
    other: Any = _WithPath(box, path)
    await process.start(other, script("echo out; exit 4", env=path))
    assert (await outcome(other))[2].exit_code == 4
    await process.start(other, limited)
    end = (await outcome(other, "limited"))[2]
    assert end.is_deadline
    assert len(await box.processes()) == 1


class _WithPath(CommandsOnly):
    """A box whose `sh` is found on a path of ours."""

    def __init__(self, box: Box, env: dict[str, str]) -> None:
        super().__init__(box)
        self.run = partial(box.run, env=env)
