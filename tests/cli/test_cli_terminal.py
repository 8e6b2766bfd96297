"""The command line as a process of its own: on a terminal, in a pipe that closes, and under Ctrl-C."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cli.fake_api import FakeApi, job, trial

ROOT = Path(__file__).parents[2]
EVOLVE = [sys.executable, "-P", "-m", "cli.main"]


class Terminal:
    """A command on a pseudo terminal; what it wrote is gathered while it is waited for."""

    def __init__(self, *arguments: str) -> None:
        self.master, slave = pty.openpty()
        environment = {
            **os.environ,
            "TERM": "xterm",
            "COLUMNS": "100",
            "LINES": "30",
            "PYTHONPATH": str(ROOT),
        }
        self.process = subprocess.Popen(
            [*EVOLVE, *arguments], stdin=slave, stdout=slave, stderr=slave, env=environment, close_fds=True
        )
        os.close(slave)
        self.seen = ""

    def wait_for(self, words: str) -> None:
        self._gather(lambda: words in self.seen)
        assert words in self.seen, self.seen

    def end(self) -> int:
        self._gather(lambda: False)
        os.close(self.master)
        return self.process.wait(30)

    def _gather(self, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            try:
                piece = os.read(self.master, 65536)
            except OSError:  # the other side has closed
                return
            if not piece:
                return
            self.seen += piece.decode()


def running_job(api: FakeApi) -> None:
    api.jobs = {"job-1": job(status="RUNNING", finished_at=None)}
    api.events = {
        "job-1": [
            (1, "job.running", {"job_id": "job-1"}),
            (2, "trial.running", {"trial_id": "t0", "task_name": "clean-csv"}),
            (
                3,
                "trial.settled",
                {"trial_id": "t0", "task_name": "clean-csv", "status": "SCORED", "reward": 1},
            ),
            (4, "trial.running", {"trial_id": "t1", "task_name": "hello-file"}),
        ]
    }
    api.trials = {"t1": trial("t1", status="RUNNING", reward=None, attempt_phase="agent", finished_at=None)}
    api.ends_streams = False


def test_ctrl_c_leaves_the_job_running_and_says_how_to_go_on(api: FakeApi) -> None:
    running_job(api)
    terminal = Terminal("job", "watch", "job-1")
    terminal.wait_for("agent")
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    assert "evolve job watch job-1" in terminal.seen
    assert "Traceback" not in terminal.seen
    assert [request for request in api.requests if request.method != "GET"] == []


def test_a_terminal_sees_settled_trials_and_those_that_run(api: FakeApi) -> None:
    running_job(api)
    terminal = Terminal("job", "watch", "job-1")
    for words in ("settled    clean-csv", "RUNNING", "[1/2]", "hello-file", "oracle", "agent"):
        terminal.wait_for(words)
    api.events["job-1"].append((5, "job.completed", {"job_id": "job-1"}))
    api.jobs["job-1"] = job()
    api.ends_streams = True
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.end() == 130


def test_the_live_view_ends_with_the_results(api: FakeApi) -> None:
    running_job(api)
    api.ends_streams = True
    api.jobs = {"job-1": job()}
    api.events["job-1"] += [
        (5, "trial.settled", {"trial_id": "t1", "task_name": "hello-file", "status": "SCORED", "reward": 0}),
        (6, "job.completed", {"job_id": "job-1"}),
    ]
    api.trials = {"t0": trial("t0", "clean-csv"), "t1": trial("t1", reward=0.0)}
    terminal = Terminal("job", "watch", "job-1")
    assert terminal.end() == 0
    assert "[2/2]  job completed" in terminal.seen
    assert terminal.seen.rstrip().splitlines()[-1].split() == ["hello-file", "0.0"]


def test_a_list_on_a_terminal_is_a_table_and_long_cells_are_cut(api: FakeApi) -> None:
    api.jobs = {"a": job("a", job_name="long" * 40)}
    cut, full = Terminal("job", "list"), Terminal("job", "list", "--no-trunc")
    assert cut.end() == full.end() == 0
    assert "…" in cut.seen
    assert "\t" not in cut.seen
    assert "…" not in full.seen


def test_ctrl_c_in_a_pipe_exits_130_with_one_hint(api: FakeApi) -> None:
    running_job(api)
    with subprocess.Popen(
        [*EVOLVE, "job", "watch", "job-1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        while "started    hello-file" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert (out, err.strip()) == ("", "the job goes on; follow it with: evolve job watch job-1")


def test_a_pipe_that_closes_is_no_traceback(api: FakeApi) -> None:
    api.jobs = {str(number): job(str(number)) for number in range(3000)}
    command = f"{' '.join(EVOLVE)} job list | head -1"
    ran = subprocess.run(
        command,
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert ran.stdout.startswith("id\t")
    assert "Traceback" not in ran.stderr


def test_the_help_loads_no_command_and_is_quick(api: FakeApi) -> None:
    started = time.monotonic()
    subprocess.run([*EVOLVE, "--help"], check=True, capture_output=True, cwd=ROOT)
    assert time.monotonic() - started < 10
