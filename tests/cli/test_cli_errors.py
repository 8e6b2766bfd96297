"""Failures: one line on stderr, nothing on stdout, and an exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Evolve
from tests.cli.fake_api import KEY, Answer, FakeApi, job, refusal


def test_a_refusal_is_one_line_with_its_code(api: FakeApi, evolve: Evolve) -> None:
    outcome = evolve("job", "show", "nope")
    assert (outcome.exit_code, outcome.out) == (1, "")
    assert outcome.err == "error: No nope here. (job_not_found)\n"


def test_a_message_of_many_lines_becomes_one(api: FakeApi, evolve: Evolve) -> None:
    api.script("GET", "/api/jobs/a", refusal(409, "concurrent_update", "first\n  second"))
    assert evolve("job", "show", "a").err == "error: first second (concurrent_update)\n"


def test_an_internal_error_names_its_request(api: FakeApi, evolve: Evolve) -> None:
    api.script("GET", "/api/jobs/a", refusal(500, "internal_error", "Something broke.", requestId="req-7"))
    assert evolve("job", "show", "a").err == "error: Something broke. (internal_error, request req-7)\n"


@pytest.mark.parametrize(
    "answer",
    [
        Answer(502, b"<html>bad gateway</html>"),
        Answer(302, b"", {"Location": "/elsewhere"}),
        Answer(200, b"[]"),
    ],
    ids=["html", "redirect", "array"],
)
def test_an_answer_outside_the_contract_is_an_error(api: FakeApi, evolve: Evolve, answer: Answer) -> None:
    api.script("GET", "/api/jobs/a", answer)
    outcome = evolve("job", "show", "a")
    assert outcome.exit_code == 1
    assert outcome.err.endswith("(unknown_error)\n")


def test_a_server_that_is_not_there_is_named(
    api: FakeApi, evolve: Evolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVOLVE_DASHBOARD_URL", "http://127.0.0.1:9")
    outcome = evolve("auth", "status")
    assert outcome.exit_code == 1
    assert outcome.err.startswith("error: no server answers at http://127.0.0.1:9")
    assert outcome.err.count("\n") == 1


def test_a_read_whose_answer_is_lost_is_asked_again(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a")}
    api.script("GET", "/api/jobs/a", Answer(cut=True))
    assert evolve("job", "show", "a").exit_code == 0
    assert len(api.asked("GET", "/api/jobs/a")) == 2


def test_a_write_whose_answer_is_lost_is_not_repeated_blindly(api: FakeApi, evolve: Evolve) -> None:
    api.jobs = {"a": job("a")}
    api.script("POST", "/api/jobs/a/cancel", Answer(cut=True))
    assert "(unreachable)" in evolve("job", "cancel", "a").err
    assert len(api.asked("POST", "/api/jobs/a/cancel")) == 1


def test_the_key_and_url_come_from_the_credentials_file(
    api: FakeApi, evolve: Evolve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("EVOLVE_API_KEY")
    monkeypatch.delenv("EVOLVE_DASHBOARD_URL")
    write_credentials(tmp_path, {"api_key": KEY, "dashboard_url": f"{api.url}/"})
    rows = evolve("auth", "status").rows
    assert rows[:3] == [["server", api.url], ["user", "robin@example.com"], ["key", "laptop"]]


def test_the_environment_wins_over_the_file(api: FakeApi, evolve: Evolve, tmp_path: Path) -> None:
    write_credentials(tmp_path, {"api_key": "stale", "dashboard_url": "http://127.0.0.1:9"})
    assert evolve("auth", "status").exit_code == 0


def test_a_stored_key_is_not_sent_to_another_server(
    api: FakeApi, evolve: Evolve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("EVOLVE_API_KEY")
    write_credentials(tmp_path, {"api_key": KEY, "dashboard_url": "http://127.0.0.1:9"})
    outcome = evolve("auth", "status")
    assert outcome.exit_code == 1
    assert "EVOLVE_API_KEY" in outcome.err
    assert api.requests == []


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_credentials_file_is_named(
    api: FakeApi, evolve: Evolve, tmp_path: Path, content: str
) -> None:
    write_credentials(tmp_path, content)
    outcome = evolve("auth", "status")
    assert outcome.exit_code == 1
    assert "credentials.json" in outcome.err


@pytest.mark.parametrize(
    "command",
    [
        ("job", "compare", "a", "b"),
        ("trial", "logs", "t", "--follow"),
        ("dataset", "delete", "d"),
        ("auth", "org", "list"),
        ("secrets", "set", "NAME", "--value", "hush"),
        ("check", "."),
    ],
    ids=" ".join,
)
def test_commands_of_later_releases_refuse_by_name(evolve: Evolve, command: tuple[str, ...]) -> None:
    outcome = evolve(*command)
    assert (outcome.exit_code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"error: evolve {command[0]}")
    assert outcome.err.endswith("not in this release (feature_unsupported)\n")
    assert "hush" not in outcome.err


@pytest.mark.parametrize(
    "command",
    [("job",), ("job", "nonsense"), ("job", "show"), ("job", "list", "--scope", "all")],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(evolve: Evolve, command: tuple[str, ...]) -> None:
    assert evolve(*command).exit_code == 2


def write_credentials(tmp_path: Path, content: object) -> None:
    home = tmp_path / "evolve-home"
    home.mkdir()
    text = content if isinstance(content, str) else json.dumps(content)
    (home / "credentials.json").write_text(text)
