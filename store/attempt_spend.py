"""What the calls of an attempt came to: for the live reading, the settle and the trace."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from domain.usage import CallUsage
from domain.vocabulary import SpendSource
from store.database import Database
from store.keys import KeyRole
from store.spend import RefusalKind


class CallRow(BaseModel):
    """A call as the ledger holds it. `usage` is None unless it was measured."""

    model_config = ConfigDict(frozen=True)

    call_id: str
    role: str
    step: str
    protocol: str
    model: str
    provider: str
    upstream_model: str
    status: str
    refusal: RefusalKind | None
    hold_nanos: int
    cost_nanos: int | None
    price_version: str
    usage: CallUsage | None
    adjustments: tuple[str, ...]
    http_status: int | None
    error_kind: str | None
    is_client_gone: bool
    is_upstream_cut: bool
    started_at: datetime
    first_byte_ms: int | None
    ended_at: datetime | None


class AttemptSpend(BaseModel):
    """What the calls of one attempt number and role came to.

    `spent_nanos` is what counts against cap and budgets: measured costs, and the holds of calls whose
    usage nobody knows (`n_unmeasured`). `measured_nanos` is the measured part, never more than was billed:
    it is what the contract calls spend (3.6: "measured agent+judge spend"). `open_hold_nanos` is what
    calls under way hold. `usage` sums measured calls.

    `source` in the contract's words (4.1, 6.2): `measured` when every call has ended and was measured, or
    failed at no cost, or when there was none; `assumed_cap` when calls ended and none of them could be
    measured, so that `measured_nanos` 0 is a placeholder; `measured_provisional` for the floor between:
    some calls are under way, or some were measured and some never will be.

    `refusals` counts those of the gateway by kind; the last two are of the call that ended last.
    `n_calls_after_refusal` tells a refusal that ended the work from one that it went on after: it counts
    the calls that began once the last refusal had been told.
    """

    model_config = ConfigDict(frozen=True)

    spent_nanos: int
    measured_nanos: int
    open_hold_nanos: int
    n_calls: int
    n_open: int
    n_unmeasured: int
    usage: CallUsage
    refusals: dict[RefusalKind, int]
    last_refusal: RefusalKind | None
    n_calls_after_refusal: int
    last_http_status: int | None
    last_error_kind: str | None
    source: SpendSource


_SPEND = """
WITH k AS (
  SELECT id FROM gateway_keys
  WHERE trial_id = $1 AND attempt_number = $2 AND role = $3 AND ($4::text IS NULL OR step = $4)),
f AS (
  SELECT c.refusal, count(*) AS n, max(c.ended_at) AS at
  FROM gateway_calls c JOIN k ON k.id = c.key_id WHERE c.status = 'refused' GROUP BY c.refusal),
r AS (SELECT max(at) AS at FROM f)
SELECT
  coalesce(sum(c.cost_nanos), 0)::bigint AS spent_nanos,
  coalesce(sum(c.cost_nanos) FILTER (WHERE c.status <> 'held'), 0)::bigint AS measured_nanos,
  coalesce(sum(c.hold_nanos) FILTER (WHERE c.status = 'open'), 0)::bigint AS open_hold_nanos,
  count(*) FILTER (WHERE c.status <> 'refused') AS n_calls,
  count(*) FILTER (WHERE c.status = 'open') AS n_open,
  count(*) FILTER (WHERE c.status = 'held') AS n_unmeasured,
  count(*) FILTER (WHERE c.status = 'measured') AS n_measured,
  coalesce(sum(c.input_tokens), 0)::bigint AS input_tokens,
  coalesce(sum(c.cached_input_tokens), 0)::bigint AS cached_input_tokens,
  coalesce(sum(c.cache_write_5m_tokens), 0)::bigint AS cache_write_5m_tokens,
  coalesce(sum(c.cache_write_1h_tokens), 0)::bigint AS cache_write_1h_tokens,
  coalesce(sum(c.output_tokens), 0)::bigint AS output_tokens,
  sum(c.reasoning_tokens)::bigint AS reasoning_tokens,
  (SELECT coalesce(jsonb_object_agg(refusal, n), '{}') FROM f) AS refusals,
  (SELECT refusal FROM f ORDER BY at DESC LIMIT 1) AS last_refusal,
  count(*) FILTER (WHERE c.status <> 'refused' AND c.started_at > r.at) AS n_calls_after_refusal,
  (array_agg(c.http_status ORDER BY c.ended_at DESC, c.started_at DESC)
    FILTER (WHERE c.status NOT IN ('open', 'refused')))[1] AS last_http_status,
  (array_agg(c.error_kind ORDER BY c.ended_at DESC, c.started_at DESC)
    FILTER (WHERE c.status NOT IN ('open', 'refused')))[1] AS last_error_kind
FROM gateway_calls c JOIN k ON k.id = c.key_id CROSS JOIN r
"""
_CALLS = """
SELECT c.*, k.role, k.step FROM gateway_calls c JOIN gateway_keys k ON k.id = c.key_id
WHERE k.trial_id = $1 AND k.attempt_number = $2 AND ($3::text IS NULL OR k.role = $3)
ORDER BY c.started_at, c.id LIMIT $4
"""
_N_CALLS = """
SELECT count(*) FROM gateway_calls c JOIN gateway_keys k ON k.id = c.key_id
WHERE k.trial_id = $1 AND k.attempt_number = $2 AND k.role = $3
"""
MAX_CALLS = 20_000
"""The most calls of an attempt that are read at once: an agent may have made any number."""
_USAGE_COLUMNS = tuple(CallUsage.model_fields)


async def attempt_spend(
    db: Database, trial_id: str, attempt_number: int, role: KeyRole, step: str | None = None
) -> AttemptSpend:
    """The sums of one attempt number and role, of one step or all together; zeros when it made no call."""
    pool = await db.pool()
    row = dict(await pool.fetchrow(_SPEND, trial_id, attempt_number, role, step))
    return AttemptSpend(
        **{name: row[name] for name in AttemptSpend.model_fields if name in row},
        usage=CallUsage(**{name: row[name] for name in _USAGE_COLUMNS}),
        source=_source(row["n_measured"], row["n_open"], row["n_unmeasured"]),
    )


def _source(n_measured: int, n_open: int, n_unmeasured: int) -> SpendSource:
    if n_open or (n_unmeasured and n_measured):
        return SpendSource.MEASURED_PROVISIONAL
    return SpendSource.ASSUMED_CAP if n_unmeasured else SpendSource.MEASURED


async def attempt_calls(
    db: Database, trial_id: str, attempt_number: int, role: KeyRole | None = None
) -> list[CallRow]:
    """The first `MAX_CALLS` calls of an attempt number, of one role or all, refused ones included, in the
    order in which they were made."""
    pool = await db.pool()
    return [_call(row) for row in await pool.fetch(_CALLS, trial_id, attempt_number, role, MAX_CALLS)]


async def count_calls(db: Database, trial_id: str, attempt_number: int, role: KeyRole) -> int:
    """How many calls of an attempt number and role there are, refused ones included."""
    return int(await (await db.pool()).fetchval(_N_CALLS, trial_id, attempt_number, role))


def _call(row: Any) -> CallRow:
    usage = {name: row[name] for name in _USAGE_COLUMNS}
    return CallRow(
        **{name: row[name] for name in CallRow.model_fields if name in row},
        call_id=row["id"],
        usage=None if row["input_tokens"] is None else CallUsage.model_validate(usage),
    )
