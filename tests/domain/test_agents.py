"""What a registered agent may be called, and what its environment may hold."""

from __future__ import annotations

import json

import pytest

from domain.agents import RUN_CONTRACT, read_env, read_registration
from domain.errors import ApiError


def refusal_of(**fields: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_registration({"name": "acme-cli", "run_command": "acme", **fields})
    return caught.value


def test_a_registration_is_what_the_form_says():
    registration = read_registration(
        {"name": "acme-cli", "run_command": "acme --go", "env": '{"A": "1"}', "org": "lab"}
    )
    assert (registration.name, registration.run_command) == ("acme-cli", "acme --go")
    assert (registration.env, registration.org) == ({"A": "1"}, "lab")
    assert read_registration({"name": "a", "run_command": "b"}).env == {}


@pytest.mark.parametrize("name", ["", "Acme", "-x", "a__b", "a/b", "a b", "a" * 64, "é"])
def test_a_name_is_lower_case_and_cannot_be_mistaken(name: str):
    error = refusal_of(name=name)
    assert (error.code, error.param) == ("agent_invalid_name", "name")


@pytest.mark.parametrize("name", ["claude", "oracle", "pi", "gemini"])
def test_the_names_of_built_in_agents_are_theirs(name: str):
    assert refusal_of(name=name).code == "agent_name_reserved"


def test_the_form_names_the_agent_of_the_path():
    with pytest.raises(ApiError) as caught:
        read_registration({"name": "other", "run_command": "x"}, "acme-cli")
    assert (caught.value.code, caught.value.param) == ("invalid_input", "name")
    assert read_registration({"run_command": "x"}, "acme-cli").name == "acme-cli"


@pytest.mark.parametrize("command", ["", "  \n", "x" * 20_000])
def test_a_run_command_is_needed(command: str):
    error = refusal_of(run_command=command)
    assert (error.code, error.param) == ("invalid_input", "run_command")


@pytest.mark.parametrize("name", RUN_CONTRACT)
def test_the_run_contracts_own_names_cannot_be_declared(name: str):
    error = refusal_of(env=json.dumps({name: "x"}))
    assert (error.code, error.param) == ("agent_invalid_env", "env")
    assert name in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GITHUB_TOKEN", "x"),
        ("ANTHROPIC_API_KEY", "x"),
        ("dbPassword", "x"),
        ("ACMEAPIKEY", "x"),
        ("PGPASSWORD", "hunter2"),
        ("ACME_AUTH", "Basic dTpw"),
        ("ACME", "sk-ant-0123456789abcdef0123"),
        ("ACME", "ghp_0123456789abcdefghijklmnopqrst"),
        ("ACME", "AKIAABCDEFGHIJKLMNOP"),
        ("ACME", "-----BEGIN RSA PRIVATE KEY-----"),
        ("ACME", "postgres://me:hunter2@db/x"),
    ],
)
def test_what_looks_like_a_credential_is_refused_without_repeating_it(name: str, value: str):
    error = refusal_of(env=json.dumps({name: value}))
    assert error.code == "agent_invalid_env"
    assert name in error.message
    assert value not in error.message or len(value) < 2


@pytest.mark.parametrize(
    "text", ["no", "[]", '{"A": 1}', '{"A": null}', '{"A B": "x"}', '{"": "x"}', '{"A": "\\u0000"}']
)
def test_an_environment_is_an_object_of_strings_by_name(text: str):
    assert refusal_of(env=text).code == "agent_invalid_env"


def test_plain_settings_are_no_credentials():
    env = {
        "PATH": "/opt/x",
        "MAX_TOKENS": "1000",
        "KEYBOARD": "us",
        "URL": "https://acme.example/a",
        "TZ": "",
    }
    assert read_env(json.dumps(env)) == env
