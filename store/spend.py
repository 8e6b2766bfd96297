"""The ledger of calls: reserved before they go upstream, settled from the provider's own usage after."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, NonNegativeInt, model_validator
from sqlalchemy import Index, text
from sqlmodel import Field

from domain.usage import CallUsage
from store.database import Database, Row, json_column, nanos_column, now, time_column

EndStatus = Literal["measured", "held", "refused_upstream", "failed"]
UnservedKind = Literal["unpriced", "no_provider_key"]
RefusalKind = Literal["own_cap", "user", "team", "platform", "in_flight", "key_dead"] | UnservedKind


class GatewayCall(Row, table=True):
    """A ledger: one call of a virtual key, admitted or refused.

    `status` is `open`, `refused` (by us, see `refusal`; nothing went upstream) or how it ended:
    `measured`, `held` (usage unknown: booked at its hold), `refused_upstream` or `failed` (cost 0).
    `is_on_credits` and `budget_month` tell which rows above the key carry its hold. `price_version` is
    `ModelPrice.version`. `adjustments` says what was clamped or stripped of the request.
    """

    __tablename__ = "gateway_calls"
    __table_args__ = (
        Index("gateway_calls_of_key", "key_id", "started_at"),
        Index("gateway_calls_of_org", "org_id", "started_at"),
        Index("gateway_calls_open", "gateway_id", "started_at", postgresql_where=text("status = 'open'")),
    )
    id: str = Field(primary_key=True)
    key_id: str
    org_id: str
    gateway_id: str
    protocol: str
    model: str
    provider: str
    upstream_model: str
    status: str
    refusal: str | None = None
    is_on_credits: bool
    budget_month: date | None = None
    hold_nanos: int = Field(sa_column=nanos_column())
    cost_nanos: int | None = Field(default=None, sa_column=nanos_column(nullable=True))
    price_version: str
    input_tokens: int | None = None
    cached_input_tokens: int | None = None
    cache_write_5m_tokens: int | None = None
    cache_write_1h_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    adjustments: list[str] = Field(sa_column=json_column())
    http_status: int | None = None
    error_kind: str | None = None
    is_client_gone: bool = False
    is_upstream_cut: bool = False
    started_at: datetime = Field(sa_column=time_column())
    first_byte_ms: int | None = None
    ended_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class NewCall(BaseModel):
    """A call that asks to be admitted. `call_id` is the gateway's; asking again with it is one call."""

    model_config = ConfigDict(frozen=True)

    call_id: str
    key_id: str
    gateway_id: str
    protocol: str
    model: str
    provider: str
    upstream_model: str
    hold_nanos: NonNegativeInt
    price_version: str
    started_at: AwareDatetime
    adjustments: tuple[str, ...] = ()


class Refusal(BaseModel):
    """Why a call was not admitted. `is_passing` when it would fit once calls under way have settled."""

    model_config = ConfigDict(frozen=True)

    kind: RefusalKind
    message: str
    is_passing: bool = False


class CallEnd(BaseModel):
    """How an admitted call ended.

    `measured` has usage and cost; `held` has neither: the ledger books the hold. `refused_upstream` and
    `failed` cost 0: the provider did nothing.
    """

    model_config = ConfigDict(frozen=True)

    status: EndStatus
    ended_at: AwareDatetime
    usage: CallUsage | None = None
    cost_nanos: NonNegativeInt | None = None
    http_status: int | None = None
    error_kind: str | None = None
    first_byte_ms: int | None = None
    is_client_gone: bool = False
    is_upstream_cut: bool = False

    @model_validator(mode="after")
    def _measured_has_its_measure(self) -> CallEnd:
        if (self.status == "measured") != (self.usage is not None and self.cost_nanos is not None):
            raise ValueError("usage and cost belong to a measured call, and to no other")
        return self


# One statement, so that a call costs one round trip and one commit. It locks the key's row, then the
# user's, then the organization's, and so does a settle: the one order. A locked row is read as its last
# writer left it, so that no two calls are admitted on the same room. The own cap comes first: a trial that
# has spent its own is scored, whatever the budgets above it say. A refusal ends when it is told, by the
# gateway's own clock and what it took here: it may have waited long since the call began.
_RESERVE = """
WITH k AS MATERIALIZED (SELECT * FROM gateway_keys WHERE id = $2 FOR UPDATE),
u AS MATERIALIZED (
  SELECT c.* FROM user_credits c JOIN k ON k.owner_user_id = c.user_id FOR UPDATE OF c),
o AS MATERIALIZED (
  SELECT b.* FROM organization_budgets b JOIN k ON k.org_id = b.org_id
  WHERE (SELECT count(*) FROM u) >= 0 FOR UPDATE OF b),
m AS MATERIALIZED (
  SELECT greatest(o.month, this.month) AS month,
         CASE WHEN o.month < this.month THEN 0 ELSE o.spent_nanos END AS spent_nanos,
         CASE WHEN o.month < this.month THEN 0 ELSE o.held_nanos END AS held_nanos,
         o.limit_nanos, o.org_id
  FROM o, (SELECT date_trunc('month', now() AT TIME ZONE 'UTC')::date AS month) this),
v AS MATERIALIZED (
  SELECT k.id AS key_id, k.org_id, u.user_id, m.month, CASE
    WHEN k.revoked_at IS NOT NULL OR k.expires_at <= now() THEN 'key_dead'
    WHEN k.spent_nanos + k.held_nanos + $9::bigint > k.cap_nanos THEN 'own_cap'
    WHEN k.n_open >= k.max_in_flight THEN 'in_flight'
    WHEN EXISTS (SELECT FROM platform_stop WHERE is_on) THEN 'platform'
    WHEN u.balance_nanos - u.held_nanos < $9 OR u.balance_nanos <= 0 THEN 'user'
    WHEN m.spent_nanos + m.held_nanos + $9 > m.limit_nanos OR m.limit_nanos <= m.spent_nanos THEN 'team'
  END AS refusal,
  k.spent_nanos + $9 <= k.cap_nanos AS fits_cap,
  u.balance_nanos > 0 AND u.balance_nanos >= $9 AS fits_credits,
  m.spent_nanos < m.limit_nanos AND m.spent_nanos + $9 <= m.limit_nanos AS fits_month
  FROM k LEFT JOIN u ON true LEFT JOIN m ON true),
placed AS (
  INSERT INTO gateway_calls (
    id, key_id, org_id, gateway_id, protocol, model, provider, upstream_model, price_version, hold_nanos,
    started_at, adjustments, is_client_gone, is_upstream_cut, status, refusal, is_on_credits, budget_month,
    ended_at)
  SELECT $1, key_id, org_id, $3, $4, $5, $6, $7, $8, $9, $10::timestamptz, $11, false, false,
         CASE WHEN refusal IS NULL THEN 'open' ELSE 'refused' END, refusal,
         refusal IS NULL AND user_id IS NOT NULL, CASE WHEN refusal IS NULL THEN month END,
         CASE WHEN refusal IS NOT NULL THEN $12::timestamptz + (clock_timestamp() - statement_timestamp()) END
  FROM v
  ON CONFLICT (id) DO UPDATE SET status = excluded.status, refusal = excluded.refusal,
    is_on_credits = excluded.is_on_credits, budget_month = excluded.budget_month,
    hold_nanos = excluded.hold_nanos, adjustments = excluded.adjustments, ended_at = excluded.ended_at
  WHERE gateway_calls.status = 'refused'
  RETURNING status),
held_by_key AS (
  UPDATE gateway_keys SET held_nanos = gateway_keys.held_nanos + $9, n_open = n_open + 1
  FROM v, placed WHERE gateway_keys.id = v.key_id AND placed.status = 'open'),
held_by_user AS (
  UPDATE user_credits SET held_nanos = user_credits.held_nanos + $9
  FROM v, placed WHERE user_credits.user_id = v.user_id AND placed.status = 'open'),
held_by_org AS (
  UPDATE organization_budgets b
  SET month = m.month, spent_nanos = m.spent_nanos, held_nanos = m.held_nanos + $9
  FROM m, placed WHERE b.org_id = m.org_id AND placed.status = 'open')
SELECT v.refusal, v.fits_cap, v.fits_credits, v.fits_month, (SELECT count(*) FROM placed) AS n_placed FROM v
"""
# A call that was booked at its hold because its gateway was away too long is put right by the measure
# that comes after all; any other second settle changes nothing.
_SETTLE = """
WITH c AS MATERIALIZED (
  SELECT id, key_id, org_id, is_on_credits, budget_month, started_at, status = 'open' AS was_open,
         CASE WHEN status = 'open' THEN hold_nanos ELSE 0 END AS released,
         CASE $2 WHEN 'measured' THEN $3::bigint WHEN 'held' THEN hold_nanos ELSE 0 END AS cost,
         CASE WHEN status = 'open' THEN 0 ELSE cost_nanos END AS booked
  FROM gateway_calls
  WHERE id = $1 AND (status = 'open' OR (status = 'held' AND $2 = 'measured')) FOR UPDATE),
ended AS (
  UPDATE gateway_calls g SET status = $2, cost_nanos = c.cost, input_tokens = $4, cached_input_tokens = $5,
    cache_write_5m_tokens = $6, cache_write_1h_tokens = $7, output_tokens = $8, reasoning_tokens = $9,
    http_status = $10, error_kind = $11, is_client_gone = $12, is_upstream_cut = $13, first_byte_ms = $14,
    ended_at = $15
  FROM c WHERE g.id = c.id),
k AS (
  UPDATE gateway_keys SET spent_nanos = spent_nanos + c.cost - c.booked, held_nanos = held_nanos - c.released,
    n_open = n_open - CASE WHEN c.was_open THEN 1 ELSE 0 END
  FROM c WHERE gateway_keys.id = c.key_id RETURNING owner_user_id),
u AS (
  UPDATE user_credits SET balance_nanos = balance_nanos - (c.cost - c.booked),
    held_nanos = held_nanos - CASE WHEN c.is_on_credits THEN c.released ELSE 0 END
  FROM c, k WHERE user_credits.user_id = k.owner_user_id RETURNING user_id)
UPDATE organization_budgets b SET spent_nanos = spent_nanos + c.cost - c.booked,
  held_nanos = held_nanos - CASE WHEN c.budget_month IS NOT NULL THEN c.released ELSE 0 END
FROM c, (SELECT count(*) AS n FROM u) after_user
WHERE b.org_id = c.org_id AND after_user.n >= 0
  AND b.month = coalesce(c.budget_month, date_trunc('month', c.started_at AT TIME ZONE 'UTC')::date)
"""
_REFUSE = """
INSERT INTO gateway_calls (
  id, key_id, org_id, gateway_id, protocol, model, provider, upstream_model, price_version, hold_nanos,
  started_at, adjustments, is_client_gone, is_upstream_cut, status, refusal, is_on_credits, ended_at)
SELECT $1, id, org_id, $3, $4, $5, $6, $7, $8, $9, $10::timestamptz, $11, false, false, 'refused', $12, false,
       $13::timestamptz
FROM gateway_keys WHERE id = $2
ON CONFLICT (id) DO UPDATE SET refusal = excluded.refusal, ended_at = excluded.ended_at
WHERE gateway_calls.status = 'refused'
"""
_OPEN = """
SELECT id FROM gateway_calls
WHERE status = 'open' AND gateway_id = $1 AND started_at < $2 ORDER BY started_at
"""

MESSAGES: dict[RefusalKind, str] = {
    "key_dead": "this key is revoked or has expired",
    "own_cap": "this call could spend more than is left of the trial's cap",
    "in_flight": "this key has as many calls under way as it may have",
    "platform": "the platform's operator has stopped all spending",
    "user": "this call could spend more than is left of the user's credits",
    "team": "this call could spend more than is left of the organization's budget of this month",
    "unpriced": "the price of this model is not known",
    "no_provider_key": "the platform has no key of this model's provider",
}


async def reserve(db: Database, call: NewCall) -> Refusal | None:
    """Hold the call's worst case on its key and the budgets above it, or say why not; both leave a row.

    Admitted only if spent + held + this hold is within each limit. A call that was refused may ask again
    with its id; one that was admitted already stays admitted and holds nothing twice.
    """
    pool = await db.pool()
    row = await pool.fetchrow(_RESERVE, *_members(call), now())
    if row is None:
        return Refusal(kind="key_dead", message=MESSAGES["key_dead"])
    if row["refusal"] is None or row["n_placed"] == 0:
        return None
    return _refusal(row)


async def record_refusal(
    db: Database, call: NewCall, kind: RefusalKind, told_at: datetime | None = None
) -> None:
    """A call that holds nothing: its trial is told by this row why. One that was refused already has its
    kind changed; one that was admitted stays as it is. `told_at` is now when it is not given."""
    await (await db.pool()).execute(_REFUSE, *_members(call), kind, told_at or now())


def _members(call: NewCall) -> tuple[Any, ...]:
    return (
        call.call_id,
        call.key_id,
        call.gateway_id,
        call.protocol,
        call.model,
        call.provider,
        call.upstream_model,
        call.price_version,
        call.hold_nanos,
        call.started_at,
        list(call.adjustments),
    )


def _refusal(row: Any) -> Refusal:
    kind: RefusalKind = row["refusal"]
    fits = {"own_cap": "fits_cap", "user": "fits_credits", "team": "fits_month"}.get(kind)
    is_passing = kind == "in_flight" or (fits is not None and bool(row[fits]))
    return Refusal(kind=kind, message=MESSAGES[kind], is_passing=is_passing)


async def settle_call(db: Database, call_id: str, end: CallEnd) -> None:
    """Release the hold and book what the call cost, in full even above its hold. Idempotent."""
    pool = await db.pool()
    await pool.execute(
        _SETTLE,
        call_id,
        end.status,
        end.cost_nanos,
        *_tokens(end.usage),
        end.http_status,
        end.error_kind,
        end.is_client_gone,
        end.is_upstream_cut,
        end.first_byte_ms,
        end.ended_at,
    )


def _tokens(usage: CallUsage | None) -> tuple[int | None, ...]:
    if usage is None:
        return (None,) * 6
    return (
        usage.input_tokens,
        usage.cached_input_tokens,
        usage.cache_write_5m_tokens,
        usage.cache_write_1h_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    )


async def book_open_holds(db: Database, gateway_id: str, before: datetime) -> int:
    """Book at their holds the calls that an earlier process of this gateway left open; returns how many.

    `before` is when the present process started. Nobody knows what they cost, and it may be all of it.
    """
    pool = await db.pool()
    left = await pool.fetch(_OPEN, gateway_id, before)
    end = CallEnd(status="held", ended_at=now(), error_kind="gateway_died", is_upstream_cut=True)
    for row in left:
        await settle_call(db, row["id"], end)
    return len(left)
