"""Users, their personal organizations and API keys. A key's secret is shown once and stored hashed."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from sqlalchemy.ext.asyncio import AsyncSession
from sqlmodel import Field, col, select

from domain.errors import EvolveError
from store.database import Database, Row, now, time_column

KEY_PREFIX = "evk_"
OWNER_EMAIL = "owner@localhost"


class User(Row, table=True):
    """A ledger of who may call."""

    __tablename__ = "users"
    id: str = Field(primary_key=True)
    email: str | None = Field(default=None, unique=True)
    default_org_id: str
    created_at: datetime = Field(sa_column=time_column())


class Organization(Row, table=True):
    """A ledger. Every user has a personal one."""

    __tablename__ = "organizations"
    id: str = Field(primary_key=True)
    slug: str = Field(unique=True)
    display_name: str
    is_personal: bool
    owner_user_id: str = Field(index=True)
    created_at: datetime = Field(sa_column=time_column())


class Membership(Row, table=True):
    """A ledger: who belongs to which organization, as `owner` or `member`."""

    __tablename__ = "memberships"
    org_id: str = Field(primary_key=True)
    user_id: str = Field(primary_key=True, index=True)
    role: str
    joined_at: datetime = Field(sa_column=time_column())


class ApiKey(Row, table=True):
    """A ledger. `key_hash` is the SHA-256 of the whole key: keys are random, so no salt is needed."""

    __tablename__ = "api_keys"
    id: str = Field(primary_key=True)
    user_id: str = Field(index=True)
    label: str | None = None
    key_hash: str = Field(unique=True)
    is_read_only: bool = False
    created_at: datetime = Field(sa_column=time_column())
    last_used_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    revoked_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


@dataclass(frozen=True)
class Caller:
    """Who makes a request. `org_ids` are all organizations the user belongs to."""

    user_id: str
    email: str | None
    default_org_id: str
    org_ids: tuple[str, ...]
    key_id: str
    is_read_only: bool


def hash_key(secret: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def create_user(session: AsyncSession, email: str, *, slug: str) -> User:
    """A user with a personal organization named `slug`."""
    user_id, org_id, at = str(uuid4()), str(uuid4()), now()
    user = User(id=user_id, email=email, default_org_id=org_id, created_at=at)
    session.add(user)
    session.add(
        Organization(
            id=org_id, slug=slug, display_name=slug, is_personal=True, owner_user_id=user_id, created_at=at
        )
    )
    session.add(Membership(org_id=org_id, user_id=user_id, role="owner", joined_at=at))
    await session.flush()
    return user


async def ensure_owner(session: AsyncSession) -> User:
    """The installation's first user, made when there is none."""
    found: Any = (await session.execute(select(User).order_by(col(User.created_at)))).scalars().first()
    return found or await create_user(session, OWNER_EMAIL, slug="personal")


async def find_user(session: AsyncSession, email: str) -> User | None:
    """The user of an address, or None."""
    return (await session.execute(select(User).where(User.email == email))).scalar_one_or_none()


async def mint_key(
    session: AsyncSession, user_id: str, *, label: str | None = None, is_read_only: bool = False
) -> tuple[ApiKey, str]:
    """A new key and its secret, which cannot be read again."""
    secret = KEY_PREFIX + secrets.token_urlsafe(32)
    key = ApiKey(
        id=str(uuid4()),
        user_id=user_id,
        label=label,
        key_hash=hash_key(secret),
        is_read_only=is_read_only,
        created_at=now(),
    )
    session.add(key)
    await session.flush()
    return key, secret


async def list_keys(session: AsyncSession, user_id: str | None = None) -> list[ApiKey]:
    """Keys, oldest first; of one user when given. Revoked ones included."""
    query = select(ApiKey).order_by(col(ApiKey.created_at))
    if user_id is not None:
        query = query.where(ApiKey.user_id == user_id)
    return list((await session.execute(query)).scalars().all())


async def revoke_key(session: AsyncSession, key_id: str) -> bool:
    """Revoke; False when there is no such key. Revoking twice keeps the first time."""
    key = await session.get(ApiKey, key_id)
    if key is None:
        return False
    key.revoked_at = key.revoked_at or now()
    session.add(key)
    return True


_CALLER_SQL = """
SELECT u.id, u.email, u.default_org_id, k.id AS key_id, k.is_read_only,
       ARRAY(SELECT org_id FROM memberships WHERE user_id = u.id) AS org_ids
FROM api_keys k JOIN users u ON u.id = k.user_id
WHERE k.key_hash = $1 AND k.revoked_at IS NULL
"""
# Written at most once a minute, so that reads do not become writes.
_TOUCH_SQL = """
UPDATE api_keys SET last_used_at = now()
WHERE id = $1 AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
"""


async def authenticate(db: Database, secret: str) -> Caller | None:
    """The caller of a key, or None when it is unknown or revoked."""
    pool = await db.pool()
    row = await pool.fetchrow(_CALLER_SQL, hash_key(secret))
    if row is None:
        return None
    await pool.execute(_TOUCH_SQL, row["key_id"])
    return Caller(
        user_id=row["id"],
        email=row["email"],
        default_org_id=row["default_org_id"],
        org_ids=tuple(row["org_ids"]),
        key_id=row["key_id"],
        is_read_only=row["is_read_only"],
    )


class UnknownOwner(EvolveError):
    """No user has this id or email."""

    code = "invalid_input"


async def caller_of_owner(db: Database, owner: str | None) -> Caller:
    """The caller for whom a workflow acts: a user by id or email; default the installation's first user.

    Access to the Temporal namespace is operator access, so no key is asked for. Raises `UnknownOwner`.
    """
    pool = await db.pool()
    row = await pool.fetchrow(
        "SELECT id, email, default_org_id, ARRAY(SELECT org_id FROM memberships WHERE user_id = users.id)"
        " AS org_ids FROM users WHERE $1::text IS NULL OR id = $1 OR email = $1 ORDER BY created_at LIMIT 1",
        owner,
    )
    if row is None:
        raise UnknownOwner(f"owner: no user {owner or 'yet'}", param="owner")
    return Caller(row["id"], row["email"], row["default_org_id"], tuple(row["org_ids"]), "", False)
