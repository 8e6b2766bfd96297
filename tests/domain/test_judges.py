"""What a verifier that grades with a language model is given."""

from __future__ import annotations

import pytest

from domain.judges import judge_env, judge_families
from domain.support import unsupported_keys
from domain.tasks import EnvValue, Task, TaskFiles, parse_task

GATEWAY = "http://127.0.0.1:8801"
OPEN = EnvValue(variable="ANTHROPIC_API_KEY")


def task_with(lines: str) -> Task:
    return parse_task("t", f"[verifier.env]\n{lines}\n", TaskFiles())


def test_a_credential_comes_with_the_base_url_that_its_clients_read() -> None:
    assert judge_env({"ANTHROPIC_API_KEY": OPEN}, GATEWAY, "evk-1") == {
        "ANTHROPIC_API_KEY": "evk-1",
        "ANTHROPIC_API_BASE": GATEWAY,
        "ANTHROPIC_BASE_URL": GATEWAY,
    }
    openai = judge_env({"OPENAI_API_KEY": EnvValue(variable="OPENAI_API_KEY")}, GATEWAY, "evk-1")
    assert openai["OPENAI_BASE_URL"] == openai["OPENAI_API_BASE"] == f"{GATEWAY}/v1"


def test_it_lands_under_the_name_that_asked_for_it_too() -> None:
    given = judge_env(
        {"GRADER_KEY": OPEN, "GRADER_URL": EnvValue(variable="ANTHROPIC_BASE_URL")}, GATEWAY, "k"
    )
    assert (given["GRADER_KEY"], given["GRADER_URL"], given["ANTHROPIC_API_KEY"]) == ("k", GATEWAY, "k")


def test_what_the_task_declares_by_itself_stays() -> None:
    env = {"ANTHROPIC_API_KEY": OPEN, "ANTHROPIC_BASE_URL": EnvValue(literal="http://mock:1")}
    assert "ANTHROPIC_BASE_URL" not in judge_env(env, GATEWAY, "k")


def test_a_default_does_not_stand_in_for_the_gateway() -> None:
    env = {"OPENAI_API_KEY": EnvValue(variable="OPENAI_API_KEY", default="none")}
    assert judge_env(env, GATEWAY, "k")["OPENAI_API_KEY"] == "k"


def test_only_the_families_that_are_asked_for_are_given() -> None:
    assert [family.provider for family in judge_families({"A": OPEN})] == ["anthropic"]
    assert (
        judge_env({"MODE": EnvValue(literal="ci"), "X": EnvValue(variable="X", default="1")}, GATEWAY, "k")
        == {}
    )


@pytest.mark.parametrize(
    ("lines", "is_refused"),
    [
        ('ANTHROPIC_API_KEY = "${ANTHROPIC_API_KEY}"', False),
        ('OPENAI_BASE_URL = "${OPENAI_BASE_URL}"', False),
        ('LEVEL = "${LEVEL:-info}"', False),
        ('QUERY_BUDGET = "${QUERY_BUDGET}"', True),
        ('GEMINI_API_KEY = "${GEMINI_API_KEY}"', True),
    ],
)
def test_only_a_judges_credential_needs_no_default(lines: str, is_refused: bool) -> None:
    refused = [key for key in unsupported_keys(task_with(lines)) if key.startswith("[verifier.env]")]
    assert bool(refused) is is_refused
