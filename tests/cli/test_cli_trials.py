"""`evolve trial …` and the verbs of jobs: traces, artifacts, folders, stops and deletes."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import Evolve
from tests.cli.fake_api import FakeApi, answer_json, archive, job, trial

GATEWAY_CALL = {
    "model": "gpt-6",
    "update": {
        "sessionUpdate": "usage",
        "source": "gateway",
        "usage": {"promptTokens": 1200, "completionTokens": 90, "costUsd": 0.0042},
    },
}


def folder(root: str) -> bytes:
    target = io.BytesIO()
    with tarfile.open(mode="w:gz", fileobj=target) as tar:
        for name, content in (("result.json", b"{}"), ("verifier/reward.json", b'{"reward": 1.0}')):
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def test_a_trace_is_drained_one_line_an_event(api: FakeApi, evolve: Evolve) -> None:
    api.page_size = 2
    api.traces = {"t1": [{"seq": seq, "type": "plan", "data": {"n": "x" * 300}} for seq in range(4)]}
    api.traces["t1"].append({"seq": 1_000_000_000, "type": "usage", "data": GATEWAY_CALL})
    lines = evolve("trial", "trace", "t1").out.splitlines()
    assert len(lines) == 5
    assert lines[0] == '0  plan  {"n": "' + "x" * 133
    assert lines[4] == "1000000000  gateway gpt-6  1200 in, 90 out  $0.0042"


def test_trace_filters_ride_on_every_page(api: FakeApi, evolve: Evolve) -> None:
    api.page_size = 1
    api.traces = {"t1": [{"seq": seq, "type": "plan", "data": {}} for seq in (5, 6)]}
    flags = ("--type", "plan", "--grep", "a b", "--tail", "7", "--cursor", "4", "-l", "50", "--json")
    out = evolve("trial", "trace", "t1", *flags).out
    assert [json.loads(line)["seq"] for line in out.splitlines()] == [5, 6]
    filters = {"type": "plan", "grep": "a b", "tail": "7", "limit": "50"}
    assert [request.query for request in api.requests] == [
        {**filters, "cursor": "4"},
        {**filters, "cursor": "5"},
    ]


def test_the_steps_of_a_trial_are_shown_one_by_one(api: FakeApi, evolve: Evolve) -> None:
    scored = {"step_name": "one", "verifier_result": {"rewards": {"reward": 0.5}}, "exception_info": None}
    why = {"exception_type": "InfrastructureError", "exception_message": "setup.sh ended with 3"}
    failed = {"step_name": "two", "verifier_result": None, "exception_info": why}
    api.trials = {"t1": trial("t1", step_results=[scored, failed])}
    out = evolve("trial", "show", "t1").out
    assert "  step one\treward 0.5\n  step two\tInfrastructureError  setup.sh ended with 3\n" in out


def test_a_job_is_searched_trial_by_trial(api: FakeApi, evolve: Evolve) -> None:
    api.page_size = 1
    events = [{"seq": 7, "type": "error", "data": {"message": "permission denied"}}]
    api.matches = [
        {"trial_id": "t1", "task_name": "hello-file", "match_count": 12, "events": events},
        {"trial_id": "t2", "task_name": None, "match_count": 1, "events": []},
    ]
    assert evolve("job", "grep", "job-1", "permission denied", "--type", "error").out.splitlines() == [
        "t1  hello-file  12 matches",
        '  7  error  {"message": "permission denied"}',
        "t2  -  1 match",
    ]
    assert [(r.query["q"], r.query["type"]) for r in api.requests] == [("permission denied", "error")] * 2
    shown = evolve("job", "grep", "job-1", "x", "--json").out.splitlines()
    assert [json.loads(line)["match_count"] for line in shown] == [12, 1]


def test_a_trial_is_saved_with_the_platforms_record(api: FakeApi, evolve: Evolve, tmp_path: Path) -> None:
    api.trials = {"t1": trial("t1", agent_result={"cost_usd": 0.5}, spend_source="measured")}
    api.archives = {"t1": archive(folder("hello-file__abcdefg"))}
    outcome = evolve("trial", "download", "t1", "-o", str(tmp_path))
    assert outcome.out == f"{tmp_path}/t1\n"
    record = json.loads((tmp_path / "t1/evolve.json").read_text())
    assert (record["id"], record["agent"]["cost_usd"], record["judge"]) == ("t1", 0.5, None)
    assert (tmp_path / "t1/verifier/reward.json").exists()


def test_a_saved_trial_is_replaced_only_with_overwrite(api: FakeApi, evolve: Evolve, tmp_path: Path) -> None:
    (tmp_path / "t1").mkdir()
    (tmp_path / "t1/old").touch()
    api.trials = {"t1": trial("t1")}
    api.archives = {"t1": archive(folder("x"))}
    assert evolve("trial", "download", "t1", "-o", str(tmp_path)).exit_code == 1
    assert (tmp_path / "t1/old").exists()
    assert evolve("trial", "download", "t1", "-o", str(tmp_path), "--overwrite").exit_code == 0
    assert not (tmp_path / "t1/old").exists()


def test_one_artifact_goes_to_stdout_as_it_is(api: FakeApi, evolve: Evolve) -> None:
    api.artifacts = {
        ("t1", "verifier"): {"log": "line one\n\ttwo"},
        ("t1", "agent-home"): {"files": {"/root/a": "b"}},
        ("t1", "trace-stdout"): {"log": None, "reason": "retired by a retry"},
    }
    assert evolve("trial", "download", "t1", "--stream", "verifier").out == "line one\n\ttwo"
    assert json.loads(evolve("trial", "download", "t1", "--stream", "agent-home").out) == {"/root/a": "b"}
    assert "retired by a retry" in evolve("trial", "download", "t1", "--stream", "trace-stdout").err
    assert evolve("trial", "download", "t1", "--stream", "trajectory").exit_code == 1


@pytest.mark.parametrize(
    "flags",
    [("--stream", "nonsense"), ("--cursor", "1"), ("--stream", "verifier", "--limit", "2"),
     ("--stream", "verifier", "--overwrite")],
    ids=" ".join,
)  # fmt: skip
def test_the_two_modes_of_download_exclude_each_other(evolve: Evolve, flags: tuple[str, ...]) -> None:
    assert evolve("trial", "download", "t1", *flags).exit_code == 2


def test_a_job_is_saved_under_its_name(api: FakeApi, evolve: Evolve, tmp_path: Path) -> None:
    api.archives = {"j": archive(folder("job-j"))}
    assert evolve("job", "download", "j", "-o", str(tmp_path)).out == f"{tmp_path}/job-j\n"
    assert (tmp_path / "job-j/result.json").exists()
    assert "exists already" in evolve("job", "download", "j", "-o", str(tmp_path)).err


def test_stopped_trials_are_told_apart(api: FakeApi, evolve: Evolve) -> None:
    api.trials = {"t1": trial("t1", status="RUNNING"), "t2": trial("t2")}
    outcome = evolve("trial", "stop", "t1", "t2", "t3")
    assert outcome.out == "t1  CANCELLED  stopped\nt2  was over already\n"
    assert (outcome.exit_code, outcome.err) == (1, "error: no such trial: t3 (trial_not_found)\n")


def test_job_stop_ends_one_datasets_live_trials(api: FakeApi, evolve: Evolve) -> None:
    api.trials = {
        "t1": trial("t1", status="RUNNING"),
        "t2": trial("t2", status="QUEUED", source="other"),
        "t3": trial("t3"),
    }
    assert evolve("job", "stop", "job-1", "--dataset", "examples").out == "t1  CANCELLED  stopped\n"
    assert api.trials["t2"]["status"] == "QUEUED"


def test_a_cancel_tells_the_new_status(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a", status="RUNNING")}
    assert evolve("job", "cancel", "a").out == "a  CANCELLING\n"


def test_a_pause_tells_since_when(api: FakeApi, evolve: Evolve) -> None:
    paused = job("a", status="RUNNING", paused_at="2026-03-01T10:00:30.000Z")
    api.script("POST", "/api/jobs/a/pause", answer_json(paused))
    api.script("POST", "/api/jobs/a/unpause", answer_json(job("a", status="RUNNING", paused_at=None)))
    assert evolve("job", "pause", "a").out == "a  RUNNING  paused since 2026-03-01T10:00:30.000Z\n"
    assert evolve("job", "unpause", "a").out == "a  RUNNING\n"


def test_a_delete_without_anybody_to_ask_needs_yes(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a")}
    assert evolve("job", "delete", "a").exit_code == 2
    assert "a" in api.jobs
    assert evolve("job", "delete", "a", "--yes").out == "deleted a with 2 trials\n"
