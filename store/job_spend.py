"""What the calls of a job came to, by role and model: for the operator."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from store.database import Database


class ModelSpend(BaseModel):
    """Calls of one role to one model. `spent_nanos` counts `n_unmeasured` calls at their holds."""

    model_config = ConfigDict(frozen=True)

    role: str
    provider: str
    upstream_model: str
    n_calls: int
    n_refused: int
    n_open: int
    n_unmeasured: int
    prompt_tokens: int
    output_tokens: int
    spent_nanos: int
    held_nanos: int


_JOB_SPEND = """
SELECT k.role, c.provider, c.upstream_model,
  count(*) FILTER (WHERE c.status <> 'refused') AS n_calls,
  count(*) FILTER (WHERE c.status = 'refused') AS n_refused,
  count(*) FILTER (WHERE c.status = 'open') AS n_open,
  count(*) FILTER (WHERE c.status = 'held') AS n_unmeasured,
  coalesce(sum(c.input_tokens + c.cached_input_tokens + c.cache_write_5m_tokens + c.cache_write_1h_tokens), 0)
    AS prompt_tokens,
  coalesce(sum(c.output_tokens), 0) AS output_tokens,
  coalesce(sum(c.cost_nanos), 0)::bigint AS spent_nanos,
  coalesce(sum(c.hold_nanos) FILTER (WHERE c.status = 'open'), 0)::bigint AS held_nanos
FROM gateway_keys k JOIN gateway_calls c ON c.key_id = k.id
WHERE k.job_id = $1 GROUP BY k.role, c.provider, c.upstream_model ORDER BY 1, 2, 3
"""


async def job_spend(db: Database, job_id: str) -> list[ModelSpend]:
    """All attempts of all its trials; empty for a job that made no call."""
    return [ModelSpend(**row) for row in await (await db.pool()).fetch(_JOB_SPEND, job_id)]
