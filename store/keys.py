"""Virtual keys: what a box may call, and how much it may spend.

A key's text is derived from the server secret and its id, so that it is stored nowhere and passes through
no workflow; its id is derived from whom it is for, so that minting again finds the same key.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid5

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt
from sqlalchemy import Index
from sqlmodel import Field

from domain.errors import EvolveError
from domain.models import MODEL_PROVIDERS, SCRIPTED, route_of
from store.database import Database, Row, json_column, nanos_column, time_column
from store.server_secret import ServerSecret

KeyRole = Literal["agent", "judge", "analyzer"]

PREFIX = "evk-"
_ID_CHARS, _MAC_CHARS = 32, 48
_NAMESPACE = UUID("6d0a4a37-5d0b-5b0f-9d5b-2f2a4f0b8c11")  # any constant of our own


class GatewayKey(Row, table=True):
    """A ledger: a virtual key and what its calls have spent and hold; whoever reserves locks this row.

    `id` is `key_id(...)`; `models` is a list of `GrantedModel`; `n_open` counts calls that are under way.
    Deleting a job leaves it: money that was spent stays spent.
    """

    __tablename__ = "gateway_keys"
    __table_args__ = (Index("gateway_keys_of_attempt", "trial_id", "attempt_number", "role"),)
    id: str = Field(primary_key=True)
    role: str
    job_id: str = Field(index=True)
    trial_id: str
    attempt_number: int
    step: str
    owner_user_id: str
    org_id: str
    models: list[dict[str, Any]] = Field(sa_column=json_column())
    cap_nanos: int = Field(sa_column=nanos_column())
    max_in_flight: int
    spent_nanos: int = Field(sa_column=nanos_column())
    held_nanos: int = Field(sa_column=nanos_column())
    n_open: int
    created_at: datetime = Field(sa_column=time_column())
    expires_at: datetime = Field(sa_column=time_column())
    revoked_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


ANY_MODEL = "*"


class GrantedModel(BaseModel):
    """A model that a key may call: `name` is the id that the box uses, the rest is where it goes.

    The name `ANY_MODEL` stands for every model of `provider` that has a price: a judge names its own.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    provider: str
    upstream_model: str

    @classmethod
    def family(cls, provider: str) -> GrantedModel:
        """Every model of one provider."""
        return cls(name=ANY_MODEL, provider=provider, upstream_model=ANY_MODEL)


class KeyPlan(BaseModel):
    """What a key is to be. `step` is empty for an attempt without steps.

    `cap_nanos` is the attempt's for the role: keys of its steps share it.
    """

    model_config = ConfigDict(frozen=True)

    role: KeyRole
    job_id: str
    trial_id: str
    attempt_number: int
    step: str = ""
    owner_user_id: str
    org_id: str
    models: tuple[GrantedModel, ...]
    cap_nanos: NonNegativeInt
    max_in_flight: PositiveInt
    expires_at: datetime

    @property
    def key_id(self) -> str:
        """32 hex digits, the same for the same trial, attempt number, step and role."""
        name = f"{self.trial_id}/{self.attempt_number}/{self.step}/{self.role}"
        return uuid5(_NAMESPACE, name).hex


class KeyGrant(BaseModel):
    """A living key, as the gateway knows it."""

    model_config = ConfigDict(frozen=True)

    key_id: str
    role: KeyRole
    job_id: str
    trial_id: str
    attempt_number: int
    step: str
    owner_user_id: str
    org_id: str
    models: tuple[GrantedModel, ...]
    cap_nanos: int
    max_in_flight: int
    expires_at: datetime

    def model(self, name: str, protocol: str | None = None) -> GrantedModel | None:
        """The model of that id, exact or of a granted family, or None when the key may not call it.

        `protocol` is the one that asks: of several families it tells whose a name is that no table knows.
        """
        exact = next((model for model in self.models if model.name == name != ANY_MODEL), None)
        return exact or self._of_family(name, protocol)

    def _of_family(self, name: str, protocol: str | None) -> GrantedModel | None:
        """A name that no table knows is taken for a family's own: what has no price is refused anyway."""
        families = [model.provider for model in self.models if model.name == ANY_MODEL]
        route = route_of(name)
        if route is not None:
            of_whom = [provider for provider in families if provider == route.provider]
        else:
            of_whom = [] if "/" in name else _speaking(families, protocol)
        if len(of_whom) != 1:
            return None
        upstream = route.upstream_model if route else name
        return GrantedModel(name=name, provider=of_whom[0], upstream_model=upstream)


def _speaking(families: list[str], protocol: str | None) -> list[str]:
    """Those whose a bare name may be, where there are several: scripted models are asked by their prefix."""
    if len(families) < 2:
        return families
    known = [MODEL_PROVIDERS[name] for name in families if name in MODEL_PROVIDERS and name != SCRIPTED]
    return [provider.name for provider in known if protocol in provider.protocols]


class KeyRevoked(EvolveError):
    """The attempt's key was revoked already: its agent phase is over."""

    code = "key_revoked"


# Minted again by a later try of the same phase: it may live longer, and is otherwise as it was. The cap is
# the attempt's: what the keys of earlier steps have spent, or may still, is off it. They are revoked by then.
_MINT = """
INSERT INTO gateway_keys (id, role, job_id, trial_id, attempt_number, step, owner_user_id, org_id, models,
                          cap_nanos, max_in_flight, expires_at, spent_nanos, held_nanos, n_open, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, greatest(0, $10::bigint - (
          SELECT coalesce(sum(spent_nanos + held_nanos), 0)::bigint FROM gateway_keys
          WHERE trial_id = $4::varchar AND attempt_number = $5 AND role = $2::varchar AND id <> $1::varchar)),
        $11, $12, 0, 0, 0, now())
ON CONFLICT (id) DO UPDATE SET expires_at = greatest(gateway_keys.expires_at, excluded.expires_at)
WHERE gateway_keys.revoked_at IS NULL
RETURNING id
"""
_REVOKE = """
UPDATE gateway_keys SET revoked_at = now()
WHERE trial_id = $1 AND attempt_number = $2 AND ($3::text IS NULL OR role = $3) AND revoked_at IS NULL
"""
_FIND = """
SELECT id AS key_id, role, job_id, trial_id, attempt_number, step, owner_user_id, org_id, models, cap_nanos,
       max_in_flight, expires_at
FROM gateway_keys WHERE id = $1 AND revoked_at IS NULL AND expires_at > now()
"""


async def mint_key(db: Database, secret: ServerSecret, plan: KeyPlan) -> str:
    """The text of the attempt's key, made when there is none. Raises `KeyRevoked`."""
    pool = await db.pool()
    minted = await pool.fetchval(
        _MINT,
        plan.key_id,
        plan.role,
        plan.job_id,
        plan.trial_id,
        plan.attempt_number,
        plan.step,
        plan.owner_user_id,
        plan.org_id,
        [model.model_dump() for model in plan.models],
        plan.cap_nanos,
        plan.max_in_flight,
        plan.expires_at,
    )
    if minted is None:
        raise KeyRevoked(
            f"the {plan.role} key of trial {plan.trial_id}, attempt {plan.attempt_number}, is revoked"
        )
    return key_text(secret, plan.key_id)


def key_text(secret: ServerSecret, key_id: str) -> str:
    """`evk-`, the key's id and a MAC of it: letters and digits only, since some harnesses check."""
    mac = hmac.new(secret.derive("virtual-keys"), key_id.encode(), hashlib.sha256).hexdigest()
    return f"{PREFIX}{key_id}{mac[:_MAC_CHARS]}"


async def revoke_keys(db: Database, trial_id: str, attempt_number: int, role: KeyRole | None = None) -> None:
    """Let no further call of an attempt be admitted; calls that are under way are settled as usual."""
    pool = await db.pool()
    await pool.execute(_REVOKE, trial_id, attempt_number, role)


async def find_key(db: Database, secret: ServerSecret, presented: str) -> KeyGrant | None:
    """The living key of this text; None when it is unknown, forged, expired or revoked.

    A forged one never reaches the database, and its text is compared in constant time.
    """
    if not presented.isascii():
        return None
    key_id = presented[len(PREFIX) : len(PREFIX) + _ID_CHARS]
    if not hmac.compare_digest(key_text(secret, key_id).encode(), presented.encode()):
        return None
    row = await (await db.pool()).fetchrow(_FIND, key_id)
    return None if row is None else KeyGrant.model_validate(dict(row))


async def has_key(db: Database, trial_id: str, attempt_number: int, role: KeyRole) -> bool:
    """Whether an attempt was ever given a key of that role."""
    pool = await db.pool()
    return bool(
        await pool.fetchval(
            "SELECT EXISTS (SELECT FROM gateway_keys"
            " WHERE trial_id = $1 AND attempt_number = $2 AND role = $3)",
            trial_id,
            attempt_number,
            role,
        )
    )
