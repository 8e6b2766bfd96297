"""`evolve admin` about money, on a real database."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from store.accounts import OWNER_EMAIL
from store.database import Database
from store.provider_keys import provider_key
from store.server_secret import ServerSecret, make_secret_file
from store.spend import reserve, settle_call
from tests.cli.conftest import Evolve
from tests.factories import make_owner
from tests.store.money_factory import measured, minted, new_call

CANARY = "sk-canary-0123456789"
Ask = Callable[[Callable[[Database], Coroutine[Any, Any, Any]]], Any]


@pytest.fixture
def ask(database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Run something on the database that the command line is pointed at; an owner is in it."""
    monkeypatch.setenv("EVOLVE_DATABASE_URL", database_url)
    monkeypatch.setenv("EVOLVE_HOME", str(tmp_path))
    monkeypatch.delenv("EVOLVE_SECRET_KEY", raising=False)
    make_secret_file(tmp_path)

    def run(query: Callable[[Database], Coroutine[Any, Any, Any]]) -> Any:
        async def with_database() -> Any:
            db = Database(database_url)
            try:
                return await query(db)
            finally:
                await db.close()

        return asyncio.run(with_database())

    run(make_owner)
    return run


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_provider_key_comes_from_standard_input_and_is_never_shown(
    ask: Ask, evolve: Evolve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    type_in(monkeypatch, f"{CANARY}\n")
    stored = evolve("admin", "provider-key", "set", "openai")
    listed = evolve("admin", "provider-key", "list")
    whole = evolve("admin", "provider-key", "list", "--json")
    assert (stored.exit_code, listed.rows[1][:2]) == (0, ["openai", "everyone"])
    assert json.loads(whole.out)[0]["fingerprint"] == listed.rows[1][2]
    secret = ServerSecret.from_file(tmp_path / "secret.key")
    assert ask(lambda db: provider_key(db, secret, "openai", "anybody")) == CANARY
    assert "canary" not in "".join(o.out + o.err for o in (stored, listed, whole))
    assert evolve("admin", "provider-key", "remove", "openai").exit_code == 0
    gone = evolve("admin", "provider-key", "remove", "openai")
    assert (gone.exit_code, "(not_found)" in gone.err) == (1, True)


def test_a_key_as_an_argument_is_refused_without_being_repeated(ask: Ask, evolve: Evolve) -> None:
    refused = evolve("admin", "provider-key", "set", "openai", CANARY)
    assert refused.exit_code == 2
    assert "standard input" in refused.err
    assert "canary" not in refused.err + refused.out


@pytest.mark.parametrize("text", ["", "\n", "two words", "größe", "line\nline"])
def test_what_is_no_key_is_refused(
    ask: Ask, evolve: Evolve, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    type_in(monkeypatch, text)
    assert evolve("admin", "provider-key", "set", "openai").exit_code == 1


def test_a_key_may_be_a_users_own(ask: Ask, evolve: Evolve, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, CANARY)
    assert evolve("admin", "provider-key", "set", "zai", "--user", OWNER_EMAIL).exit_code == 0
    assert evolve("admin", "provider-key", "list").rows[1][:2] == ["zai", OWNER_EMAIL]
    type_in(monkeypatch, CANARY)
    unknown = evolve("admin", "provider-key", "set", "zai", "--user", "nobody@example.org")
    assert "nobody@example.org" in unknown.err
    for name in ("scripted", "Open AI"):
        assert evolve("admin", "provider-key", "set", name).exit_code == 2


def test_limits_are_set_shown_and_lifted(ask: Ask, evolve: Evolve) -> None:
    assert evolve("admin", "credits", "set", OWNER_EMAIL, "12.5").exit_code == 0
    assert evolve("admin", "budget", "set", "personal", "100").exit_code == 0
    assert evolve("admin", "platform-stop", "on").exit_code == 0
    shown = evolve("admin", "spend")
    assert shown.rows[1:] == [
        ["user", OWNER_EMAIL, "$12.50", "-", "$0.00"],
        ["organization", "personal", "$100.00", "$0.00", "$0.00"],
    ]
    assert "stop is on" in shown.err
    evolve("admin", "platform-stop", "off")
    evolve("admin", "credits", "set", OWNER_EMAIL, "unlimited")
    limits = json.loads(evolve("admin", "spend", "--json").out)
    assert (limits["platform_stop"], limits["credits"][0]["balance_nanos"]) == (False, None)
    assert limits["budgets"][0]["limit_nanos"] == 100_000_000_000


@pytest.mark.parametrize("usd", ["-1", "nan", "much", "1e30", "0.0000000001"])
def test_what_is_no_amount_is_refused(ask: Ask, evolve: Evolve, usd: str) -> None:
    assert evolve("admin", "credits", "set", OWNER_EMAIL, "--", usd).exit_code == 2


def test_unknown_users_and_organizations_are_named(ask: Ask, evolve: Evolve) -> None:
    assert "nobody@example.org" in evolve("admin", "credits", "set", "nobody@example.org", "1").err
    assert "no organization lab" in evolve("admin", "budget", "set", "lab", "1").err


def test_a_jobs_calls_are_summed_by_role_and_model(ask: Ask, evolve: Evolve) -> None:
    async def call(db: Database) -> None:
        plan = await minted(db, job_id="the-job", cap_nanos=10**10)
        one = new_call(plan, 10**9)
        await reserve(db, one)
        await settle_call(db, one.call_id, measured(500_000_000, input_tokens=7, output_tokens=3))
        await reserve(db, new_call(plan, 10**11))

    ask(call)
    shown = evolve("admin", "spend", "--job", "the-job")
    assert shown.rows[1] == [
        "agent", "anthropic", "claude-opus-5-5", "1", "1", "0", "7", "3", "$0.5000", "$0.00",
    ]  # fmt: skip
    assert "(job_not_found)" in evolve("admin", "spend", "--job", "another").err


def test_a_price_is_stated_listed_and_taken_back(ask: Ask, evolve: Evolve) -> None:
    words = ("admin", "price", "set", "openrouter", "z-ai/glm-5.3", "--input", "0.6", "--output", "2.2")
    assert "operator/1" in evolve(*words, "--cached", "0.075").out
    (row,) = evolve("admin", "price", "list").rows[1:]
    assert row == ["openrouter", "z-ai/glm-5.3", "0.6", "0.075", "-", "-", "2.2", "-", "operator/1"]
    assert evolve("admin", "price", "unset", "openrouter", "z-ai/glm-5.3").exit_code == 0
    assert evolve("admin", "price", "list").rows[1:] == []
    assert len(evolve("admin", "price", "list", "anthropic").rows) > 10


def test_a_price_goes_by_the_providers_own_id(ask: Ask, evolve: Evolve) -> None:
    evolve("admin", "price", "set", "fireworks", "glm-9.1", "--input", "1", "--output", "2")
    assert evolve("admin", "price", "list").rows[1][1] == "accounts/fireworks/models/glm-9p1"


@pytest.mark.parametrize("usd", ["0", "free", "-1"])
def test_nothing_can_be_stated_to_be_free(ask: Ask, evolve: Evolve, usd: str) -> None:
    refused = evolve("admin", "price", "set", "zai", "glm", f"--input={usd}", "--output", "1")
    assert refused.exit_code == 2


def test_preparing_a_home_makes_its_secret_once(ask: Ask, evolve: Evolve, tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    path.unlink()
    prepare = ("serve", "prepare", "--dashboard-url", "http://127.0.0.1:8800")
    assert evolve(*prepare).exit_code == 0
    made = path.read_text()
    assert (path.stat().st_mode & 0o777, len(made.strip())) == (0o600, 64)
    assert evolve(*prepare).exit_code == 0
    assert path.read_text() == made
