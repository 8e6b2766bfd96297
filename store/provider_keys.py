"""Own keys of model providers, an operator's or a user's: encrypted under the server secret."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import BaseModel, ConfigDict
from sqlalchemy import Column, LargeBinary
from sqlmodel import Field

from domain.errors import EvolveError
from store.database import Database, Row, time_column
from store.server_secret import ServerSecret

OPERATOR = ""
"""The owner of a key that serves every user without one of their own."""


class ProviderKey(Row, table=True):
    """A ledger: `ciphertext` is the nonce and the AES-256-GCM sealed key; `owner_user_id` is `OPERATOR` or
    a user. `fingerprint` names the key to people and tells nothing of it."""

    __tablename__ = "provider_keys"
    provider: str = Field(primary_key=True)
    owner_user_id: str = Field(primary_key=True)
    ciphertext: bytes = Field(sa_column=Column(LargeBinary, nullable=False))
    fingerprint: str
    updated_at: datetime = Field(sa_column=time_column())


class ListedProviderKey(BaseModel):
    """A key as people see it. `email` is None for the operator's."""

    model_config = ConfigDict(frozen=True)

    provider: str
    owner_user_id: str
    email: str | None
    fingerprint: str
    updated_at: datetime


class UnreadableProviderKey(EvolveError):
    """A stored key was sealed under another server secret, or its row was changed."""

    code = "unreadable_provider_key"


NONCE_BYTES = 12
_SET = """
INSERT INTO provider_keys (provider, owner_user_id, ciphertext, fingerprint, updated_at)
VALUES ($1, $2, $3, $4, now())
ON CONFLICT (provider, owner_user_id) DO UPDATE SET
  ciphertext = excluded.ciphertext, fingerprint = excluded.fingerprint, updated_at = now()
"""
# A user's own comes before the operator's.
_GET = """
SELECT owner_user_id, ciphertext FROM provider_keys
WHERE provider = $1 AND owner_user_id IN ($2, '') ORDER BY owner_user_id DESC LIMIT 1
"""
_LIST = """
SELECT k.provider, k.owner_user_id, u.email, k.fingerprint, k.updated_at
FROM provider_keys k LEFT JOIN users u ON u.id = k.owner_user_id ORDER BY k.provider, u.email NULLS FIRST
"""


async def set_provider_key(
    db: Database, secret: ServerSecret, provider: str, value: str, owner_user_id: str = OPERATOR
) -> str:
    """Store a key in place of an earlier one; returns its fingerprint."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    sealed = nonce + _cipher(secret).encrypt(nonce, value.encode(), _bound_to(provider, owner_user_id))
    fingerprint = hashlib.sha256(value.encode()).hexdigest()[:8]
    await (await db.pool()).execute(_SET, provider, owner_user_id, sealed, fingerprint)
    return fingerprint


async def provider_key(db: Database, secret: ServerSecret, provider: str, owner_user_id: str) -> str | None:
    """The user's own key of a provider, else the operator's, else None. Raises `UnreadableProviderKey`."""
    row = await (await db.pool()).fetchrow(_GET, provider, owner_user_id)
    if row is None:
        return None
    sealed, bound_to = row["ciphertext"], _bound_to(provider, row["owner_user_id"])
    try:
        return _cipher(secret).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound_to).decode()
    except InvalidTag:
        whose = "the operator" if row["owner_user_id"] == OPERATOR else f"user {row['owner_user_id']}"
        raise UnreadableProviderKey(
            f"the {provider} key of {whose} does not open with this server secret: set it again"
        ) from None


async def remove_provider_key(db: Database, provider: str, owner_user_id: str = OPERATOR) -> bool:
    """Forget a key; False when there is none."""
    pool = await db.pool()
    removed = await pool.fetchval(
        "DELETE FROM provider_keys WHERE provider = $1 AND owner_user_id = $2 RETURNING provider",
        provider,
        owner_user_id,
    )
    return removed is not None


async def list_provider_keys(db: Database) -> list[ListedProviderKey]:
    """All of them, without their values."""
    return [ListedProviderKey(**row) for row in await (await db.pool()).fetch(_LIST)]


def _cipher(secret: ServerSecret) -> AESGCM:
    return AESGCM(secret.derive("provider-keys"))


def _bound_to(provider: str, owner_user_id: str) -> bytes:
    """Sealed with the key, so that a row's ciphertext opens in no other row."""
    return f"{provider}\0{owner_user_id}".encode()
