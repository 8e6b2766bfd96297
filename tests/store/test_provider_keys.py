"""Provider keys: sealed, the user's own first, and useless without the server secret."""

from __future__ import annotations

import pytest

from store.database import Database
from store.provider_keys import (
    UnreadableProviderKey,
    list_provider_keys,
    provider_key,
    remove_provider_key,
    set_provider_key,
)
from store.server_secret import ServerSecret
from tests.factories import make_owner
from tests.store.money_factory import SECRET

CANARY = "sk-canary-0123456789"


async def test_a_users_own_key_comes_before_the_operators(db: Database) -> None:
    await set_provider_key(db, SECRET, "openai", "sk-operator")
    await set_provider_key(db, SECRET, "openai", "sk-ann", "ann")
    found = [await provider_key(db, SECRET, "openai", user) for user in ("ann", "bob")]
    assert found == ["sk-ann", "sk-operator"]
    assert await provider_key(db, SECRET, "zai", "ann") is None
    assert await remove_provider_key(db, "openai", "ann")
    assert not await remove_provider_key(db, "openai", "ann")
    assert await provider_key(db, SECRET, "openai", "ann") == "sk-operator"


async def test_setting_again_replaces(db: Database) -> None:
    first = await set_provider_key(db, SECRET, "openai", "one")
    assert await set_provider_key(db, SECRET, "openai", "two") != first
    assert await provider_key(db, SECRET, "openai", "ann") == "two"


async def test_nothing_of_a_key_is_stored_or_listed_in_clear(db: Database) -> None:
    owner = await make_owner(db)
    await set_provider_key(db, SECRET, "openai", CANARY, owner.id)
    stored = await (await db.pool()).fetchval("SELECT ciphertext FROM provider_keys")
    assert CANARY.encode() not in stored
    (listed,) = await list_provider_keys(db)
    assert (listed.provider, listed.email) == ("openai", owner.email)
    assert "canary" not in repr(listed)


async def test_a_key_opens_only_with_its_secret_and_in_its_row(db: Database) -> None:
    await set_provider_key(db, SECRET, "openai", CANARY)
    with pytest.raises(UnreadableProviderKey, match="openai key of the operator") as refused:
        await provider_key(db, ServerSecret("y" * 32), "openai", "ann")
    assert CANARY not in str(refused.value)
    await (await db.pool()).execute("UPDATE provider_keys SET owner_user_id = 'ann'")
    with pytest.raises(UnreadableProviderKey, match="user ann"):
        await provider_key(db, SECRET, "openai", "ann")
