"""`evolve dataset …`: judged before the upload, followed to the end, shown with every verdict."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cli import patience, publishing
from cli.packing import pack_directory
from tests.cli.conftest import Evolve
from tests.cli.fake_api import FakeApi, answer_json, archive, refusal

ROOT = Path(__file__).parents[2]
READY = {
    "version": "1",
    "state": "READY",
    "created_at": "2026-03-01T00:00:00Z",
    "task_count": 2,
    "n_failed_tasks": 1,
}


def dataset(**members: Any) -> dict[str, Any]:
    task = {"agent_timeout_sec": 60.0, "verifier_timeout_sec": 30.0, "gpus": 0, "notes": []}
    verdicts = {"local": {"ok": True}, "e2b": {"ok": False, "reason": "no boxes"}}
    failure = {"code": "image_build_failed", "step": "image-build", "message": "COPY missing.txt"}
    return {
        "name": "examples",
        "description": "Small tasks",
        "active_version": READY,
        "latest_version": READY,
        "upstream": None,
        "versions": [READY],
        "selected_version": READY,
        "tasks": {
            "items": [{**task, "task_name": name, "providers": verdicts} for name in ("a", "b")],
            "nextCursor": None,
        },
        "failed_tasks": [{"task_name": "broken", "failure": failure}],
        **members,
    }


def running(**members: Any) -> dict[str, Any]:
    return {
        "id": "import-1",
        "name": "examples",
        "version": "1",
        "status": "RUNNING",
        "failure": None,
        **members,
    }


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two example tasks."""
    for name in ("hello-file", "clean-csv"):
        shutil.copytree(ROOT / "examples/tasks" / name, tmp_path / "corpus/tasks" / name)
    return tmp_path / "corpus"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls do not wait."""
    monkeypatch.setattr(publishing, "POLL_SEC", 0.0)
    monkeypatch.setattr(patience, "FIRST_WAIT_SEC", 0.0)


def test_the_examples_pass_their_check(evolve: Evolve) -> None:
    outcome = evolve("dataset", "check", str(ROOT / "examples"))
    assert outcome.exit_code == 0
    assert outcome.out.splitlines()[-1] == "8 of 8 tasks can be published"


def test_a_refused_task_is_named_with_its_reason(evolve: Evolve, corpus: Path) -> None:
    (corpus / "tasks/hello-file/tests/test.sh").unlink()
    outcome = evolve("dataset", "check", str(corpus))
    assert outcome.exit_code == 1
    assert "REFUSED  hello-file  tests/test.sh: missing" in outcome.out
    assert "ok       clean-csv" in outcome.out


def test_a_note_is_no_refusal(evolve: Evolve, corpus: Path) -> None:
    (corpus / "tasks/hello-file/solution/solve.sh").unlink()
    outcome = evolve("dataset", "check", str(corpus))
    assert outcome.exit_code == 0
    assert "NOTE     hello-file  solution/solve.sh" in outcome.out


def test_a_check_as_json_holds_every_verdict(evolve: Evolve, corpus: Path) -> None:
    tasks = json.loads(evolve("dataset", "check", str(corpus), "--json").out)["tasks"]
    assert [(task["name"], task["ok"]) for task in tasks] == [("clean-csv", True), ("hello-file", True)]


@pytest.mark.parametrize("directory", ["nowhere", "empty"])
def test_a_directory_without_tasks_is_refused_as_a_whole(
    evolve: Evolve, tmp_path: Path, directory: str
) -> None:
    (tmp_path / "empty").mkdir()
    outcome = evolve("dataset", "check", str(tmp_path / directory))
    assert (outcome.exit_code, outcome.err.count("\n")) == (1, 1)


def test_a_published_directory_arrives_packed(api: FakeApi, evolve: Evolve, corpus: Path) -> None:
    api.imports = {"import-1": [running(status="QUEUED")]}
    outcome = evolve("dataset", "publish", "--dir", str(corpus), "--name", "examples", "--version", "1")
    assert (outcome.exit_code, outcome.out) == (0, "import-1\n")
    (request,) = api.asked("POST", "/api/datasets/publish")
    content = request.body.split(b"application/gzip\r\n\r\n")[1].rsplit(b"\r\n--", 1)[0]
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        assert "tasks/hello-file/task.toml" in tar.getnames()


def test_a_refused_task_stops_a_publish_before_the_upload(api: FakeApi, evolve: Evolve, corpus: Path) -> None:
    (corpus / "tasks/hello-file/instruction.md").unlink()
    publish = ("dataset", "publish", "--dir", str(corpus), "--name", "examples", "--version", "1")
    outcome = evolve(*publish)
    assert outcome.exit_code == 1
    assert "REFUSED  hello-file" in outcome.err
    assert api.requests == []
    api.imports = {"import-1": [running(status="QUEUED")]}
    assert evolve(*publish, "--skip-preflight").exit_code == 0


def test_name_and_version_may_only_be_left_to_a_manifest(api: FakeApi, evolve: Evolve, corpus: Path) -> None:
    assert evolve("dataset", "publish", "--dir", str(corpus), "--name", "examples").exit_code == 2
    assert evolve("dataset", "publish").exit_code == 2
    (corpus / "dataset.toml").write_text('[dataset]\nname = "me/examples"\n')
    api.imports = {"import-1": [running(status="QUEUED")]}
    assert evolve("dataset", "publish", "--dir", str(corpus), "--skip-preflight").exit_code == 0
    assert b'name="name"' not in api.requests[-1].body


@pytest.mark.parametrize("flag", ["--git", "--from"])
def test_other_sources_refuse_by_name(evolve: Evolve, flag: str) -> None:
    outcome = evolve("dataset", "publish", flag, "https://example.com/x")
    assert (outcome.exit_code, outcome.err) == (
        1,
        f"error: {flag}: not in this release (feature_unsupported)\n",
    )


def test_a_watched_publish_ends_with_every_tasks_outcome(
    api: FakeApi, evolve: Evolve, corpus: Path, at_once: None
) -> None:
    phases = [{"name": "extracting", "done": 0, "total": 0}, {"name": "building", "done": 1, "total": 3}]
    api.imports = {
        "import-1": [
            running(status="QUEUED", receiving=True),
            running(progress={"phases": phases[:1]}),
            running(progress={"phases": phases}),
            running(progress={"phases": phases}),
            running(status="COMPLETED", warnings=[{"code": "tasks_failed_to_build", "message": "1 of 3"}]),
        ]
    }
    api.datasets = {"examples": dataset()}
    outcome = evolve(
        "dataset", "publish", "--dir", str(corpus), "--name", "examples", "--version", "1", "--watch"
    )
    assert outcome.exit_code == 0
    assert outcome.out.splitlines() == [
        "examples@1  QUEUED (receiving)",
        "examples@1  RUNNING  extracting",
        "examples@1  RUNNING  building 1/3",
        "examples@1  COMPLETED",
        "READY   a",
        "READY   b",
        "FAILED  broken  image_build_failed at image-build: COPY missing.txt",
        "examples@1 is READY: 2 built, 1 failed",
    ]
    assert outcome.err == "warning: tasks_failed_to_build: 1 of 3\n"


def test_a_failed_import_exits_1_with_its_reasons(api: FakeApi, evolve: Evolve, at_once: None) -> None:
    failure = {
        "code": "import_failed",
        "message": "no task built",
        "failures": [{"task_name": "a", "error": "tests/test.sh: missing"}],
    }
    api.imports = {"import-1": [running(status="FAILED", failure=failure)]}
    outcome = evolve("dataset", "watch", "examples")
    assert outcome.exit_code == 1
    assert "FAILED  a  tests/test.sh: missing" in outcome.out
    assert outcome.err == "error: examples@1: no task built (import_failed)\n"


def test_a_watch_waits_through_an_outage(api: FakeApi, evolve: Evolve, at_once: None) -> None:
    api.imports = {"import-1": [running(), running(status="COMPLETED")]}
    api.datasets = {"examples": dataset()}
    api.script("GET", "/api/datasets/imports/import-1", refusal(503, "internal_error", "starting"))
    assert evolve("dataset", "watch", "examples").exit_code == 0


def test_a_dataset_without_an_import_cannot_be_watched(api: FakeApi, evolve: Evolve) -> None:
    assert evolve("dataset", "watch", "nope").err.endswith("(import_not_found)\n")


def test_the_catalog_is_listed_with_moved_upstreams(api: FakeApi, evolve: Evolve) -> None:
    moved = {"ref": "v1", "current_commit": "a", "latest_commit": "b", "moved": True}
    api.datasets = {
        "examples": dataset(),
        "org/other": dataset(name="org/other", active_version=None, upstream=moved),
    }
    outcome = evolve("dataset", "list", "--columns", "name,active,tasks,state")
    assert outcome.rows[1:] == [["examples", "1", "2", "READY"], ["org/other", "-", "-", "READY"]]
    assert outcome.err == "org/other: v1 has moved to b\n"


def test_a_version_is_shown_with_verdicts_and_failed_tasks(api: FakeApi, evolve: Evolve) -> None:
    api.datasets = {"org/x": dataset(name="org/x")}
    outcome = evolve("dataset", "show", "org/x@1")
    assert api.requests[-1].path == "/api/datasets/org%2Fx"
    assert api.requests[-1].query == {"version": "1"}
    assert ["a", "60.0", "30.0", "no: no boxes", "yes", "-"] in outcome.rows
    assert outcome.out.splitlines()[-1].startswith("FAILED  broken")


def test_a_bare_name_is_pointed_at_another_version(api: FakeApi, evolve: Evolve) -> None:
    api.script("POST", "/api/datasets/org%2Fx/versions/1/activate", answer_json(dataset(name="org/x")))
    assert evolve("dataset", "activate", "org/x", "1").out == "org/x is org/x@1\n"


def test_all_pages_of_a_versions_tasks_are_read(api: FakeApi, evolve: Evolve) -> None:
    first, second = dataset(), dataset()
    first["tasks"] = {"items": first["tasks"]["items"][:1], "nextCursor": "c1"}
    second["tasks"] = {"items": second["tasks"]["items"][1:], "nextCursor": None}
    api.script("GET", "/api/datasets/examples", answer_json(first), answer_json(second))
    shown = json.loads(evolve("dataset", "show", "examples", "--json").out)
    assert [task["task_name"] for task in shown["tasks"]["items"]] == ["a", "b"]
    assert api.requests[-1].query == {"cursor": "c1"}


def test_a_downloaded_package_keeps_its_layout(
    api: FakeApi, evolve: Evolve, corpus: Path, tmp_path: Path
) -> None:
    target = io.BytesIO()
    pack_directory(corpus, target)
    api.archives = {"examples": archive(target.getvalue())}
    outcome = evolve("dataset", "download", "examples@1", "-o", str(tmp_path / "out"))
    assert outcome.out == f"{tmp_path}/out/examples@1\n"
    assert (tmp_path / "out/examples@1/tasks/hello-file/solution/solve.sh").stat().st_mode & 0o111 == 0
    assert api.requests[-1].query == {"version": "1"}
