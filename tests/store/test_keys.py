"""Virtual keys: derived, found again, and dead when they should be."""

from __future__ import annotations

from datetime import timedelta

import pytest

from store.database import Database, now
from store.keys import GrantedModel, KeyRevoked, find_key, key_text, mint_key, revoke_keys
from store.server_secret import ServerSecret
from tests.store.money_factory import MODEL, SECRET, key_plan

OTHER_SECRET = ServerSecret("another secret of another installation")


async def test_a_minted_key_is_found_with_what_it_may(db: Database) -> None:
    plan = key_plan(step="build", cap_nanos=7)
    grant = await find_key(db, SECRET, await mint_key(db, SECRET, plan))
    assert grant is not None
    assert grant.model_dump(exclude={"key_id"}) == plan.model_dump()
    assert grant.model("opus") == MODEL
    assert grant.model("opus-5") is None


async def test_minting_again_finds_the_same_key_and_lets_it_live_longer(db: Database) -> None:
    plan = key_plan()
    later = plan.model_copy(update={"expires_at": plan.expires_at + timedelta(hours=1), "cap_nanos": 9})
    text = await mint_key(db, SECRET, plan)
    assert await mint_key(db, SECRET, later) == text
    assert await mint_key(db, SECRET, plan) == text
    grant = await find_key(db, SECRET, text)
    assert grant is not None
    assert (grant.expires_at, grant.cap_nanos) == (later.expires_at, plan.cap_nanos)


async def test_each_attempt_step_and_role_has_its_own_key() -> None:
    plan = key_plan()
    others = ({"attempt_number": 2}, {"step": "two"}, {"role": "judge"}, {"trial_id": "other"})
    ids = {plan.key_id, *(plan.model_copy(update=change).key_id for change in others)}
    assert len(ids) == 5


async def test_no_key_is_in_the_database_in_clear(db: Database) -> None:
    text = await mint_key(db, SECRET, key_plan())
    row = await (await db.pool()).fetchval("SELECT k::text FROM gateway_keys k")
    assert text not in row
    assert text[-48:] not in row


async def test_a_forged_or_foreign_key_is_unknown(db: Database) -> None:
    plan = key_plan()
    text = await mint_key(db, SECRET, plan)
    last = "0" if text[-1] != "0" else "1"
    forged = (
        text[:-1] + last,
        text[:-1],
        text + "0",
        "",
        "evk-",
        text.upper(),
        key_text(OTHER_SECRET, plan.key_id),
    )
    assert [await find_key(db, SECRET, presented) for presented in (*forged, "evk-größe")] == [None] * 8
    assert await find_key(db, OTHER_SECRET, text) is None


async def test_a_revoked_or_expired_key_is_unknown(db: Database) -> None:
    agent, judge = key_plan(), key_plan(role="judge")
    judge = judge.model_copy(update={"trial_id": agent.trial_id})
    texts = [await mint_key(db, SECRET, plan) for plan in (agent, judge)]
    await revoke_keys(db, agent.trial_id, 1, "agent")
    found = [await find_key(db, SECRET, text) for text in texts]
    assert [grant and grant.role for grant in found] == [None, "judge"]
    await revoke_keys(db, agent.trial_id, 1)
    assert await find_key(db, SECRET, texts[1]) is None
    with pytest.raises(KeyRevoked, match=agent.trial_id):
        await mint_key(db, SECRET, agent)
    expired = await mint_key(db, SECRET, key_plan(expires_at=now() - timedelta(seconds=1)))
    assert await find_key(db, SECRET, expired) is None


async def test_a_judges_key_admits_any_model_of_its_family_and_no_other(db: Database) -> None:
    family = (GrantedModel.family("anthropic"),)
    grant = await find_key(db, SECRET, await mint_key(db, SECRET, key_plan(role="judge", models=family)))
    assert grant is not None
    sonnet = grant.model("claude-sonnet-4-6")
    assert sonnet is not None
    assert (sonnet.provider, sonnet.upstream_model) == ("anthropic", "claude-sonnet-4-6")
    # Its vendor's name may stand before it; a name that no table knows has no price, and so no call.
    assert grant.model("anthropic/claude-sonnet-4-6") == sonnet.model_copy(
        update={"name": "anthropic/claude-sonnet-4-6"}
    )
    assert [grant.model(name) for name in ("gpt-5", "openai/gpt-5", "scripted/judge", "x/claude-1")] == [
        None
    ] * 4


async def test_a_name_that_no_table_knows_is_of_the_family_that_is_asked_in_its_protocol(
    db: Database,
) -> None:
    families = tuple(GrantedModel.family(name) for name in ("anthropic", "openai", "scripted"))
    grant = await find_key(db, SECRET, await mint_key(db, SECRET, key_plan(role="judge", models=families)))
    assert grant is not None
    found = [
        grant.model("davinci-9", protocol) for protocol in ("responses", "chat", "messages", "gemini", None)
    ]
    assert [model and model.provider for model in found] == ["openai", "openai", "anthropic", None, None]
    # What a table knows is whose it is, whoever asks.
    known = grant.model("claude-sonnet-4-6", "chat")
    assert known is not None
    assert known.provider == "anthropic"
