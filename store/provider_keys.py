"""Own keys of model providers, an operator's or a user's: encrypted under the server secret."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Column, LargeBinary
from sqlmodel import Field

from store.database import Row, time_column

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
