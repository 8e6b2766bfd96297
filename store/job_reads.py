"""Jobs as the wire shows them, from their rows: no sum over trials on any read."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from domain.errors import ApiError
from domain.jobs import JobPlan
from domain.money import usd_of_nanos
from domain.stats import GroupSums, JobTotals
from domain.trials import wire_time
from domain.vocabulary import JobListScope, JobStatus, JobVisibility, TrialStatus
from store.accounts import Caller
from store.database import Database
from store.pages import PageRequest, page

_COLUMNS = """
SELECT j.*, o.slug AS org FROM jobs j JOIN organizations o ON o.id = j.org_id
"""
_VISIBLE = "(j.owner_user_id = $2 OR j.org_id = ANY($3))"
_SCOPES: dict[JobListScope, str] = {
    "my": "j.owner_user_id = $1",
    "shared": "j.owner_user_id <> $1 AND j.org_id = ANY($2)",
    "org": "(j.owner_user_id = $1 OR j.org_id = ANY($2))",
}
_LIST = """
  AND ($3::text IS NULL OR j.name ILIKE $3
       OR EXISTS (SELECT FROM jsonb_array_elements(j.plan -> 'datasets') d WHERE d ->> 'name' ILIKE $3))
  AND ($4::timestamptz IS NULL OR (j.started_at, j.id) < ($4, $5))
ORDER BY j.started_at DESC, j.id DESC LIMIT $6
"""
_GROUPS = """
SELECT job_id, evals_key, n_total, n_settled, n_rewarded, n_errors, reward_sum, is_binary, pass_at_k
FROM job_groups WHERE job_id = ANY($1) ORDER BY arm_index, source
"""
# One pass over narrow columns; an ordered aggregate would sort ten thousand ids for each list.
_TRIAL_IDS = """
SELECT evals_key, rewards, exception_type, string_agg(id, ',') AS ids
FROM (SELECT evals_key, rewards, exception_type, id FROM trials WHERE job_id = $1 ORDER BY index) t
WHERE rewards IS NOT NULL OR exception_type IS NOT NULL
GROUP BY evals_key, rewards, exception_type
"""
# The page's tasks first, then only their trials.
_TASKS = """
WITH tasks AS (
  SELECT source, task_name, min(index) AS first FROM trials WHERE job_id = $1
  GROUP BY source, task_name HAVING min(index) > $2 ORDER BY first LIMIT $3
)
SELECT k.source, k.task_name, k.first, t.status, count(*) AS n, sum(coalesce(t.reward, 0)) AS rewards,
       sum((t.result #>> '{agent_result,cost_usd}')::float8) AS agent_cost,
       sum((t.result #>> '{judge_result,cost_usd}')::float8) AS judge_cost
FROM tasks k JOIN trials t ON t.job_id = $1 AND t.source = k.source AND t.task_name = k.task_name
GROUP BY k.source, k.task_name, k.first, t.status ORDER BY k.first
"""

# Half a megabyte for a job of ten thousand trials.
MAX_KEPT_JOBS = 64
_ended: OrderedDict[tuple[str, int], list[Any]] = OrderedDict()

_PAUSABLE = (JobStatus.QUEUED, JobStatus.RUNNING)

LIST_CURSOR = (datetime, str)
TASKS_CURSOR = (int,)


async def find_job(db: Database, caller: Caller, job_id: str) -> Any:
    """The job's row with its `org`; raises `job_not_found` for one the caller cannot see."""
    pool = await db.pool()
    query = f"{_COLUMNS} WHERE j.id = $1 AND {_VISIBLE}"
    row = await pool.fetchrow(query, job_id, caller.user_id, caller.org_ids)
    if row is None:
        raise ApiError("job_not_found", f"No job {job_id}.")
    return row


async def read_job(db: Database, caller: Caller, job_id: str, *, is_viewed: bool = False) -> dict[str, Any]:
    """The Job body with its lists of trial ids. `viewer` is told where `is_viewed`: on single reads."""
    row = await find_job(db, caller, job_id)
    groups = (await _groups_of(db, [job_id]))[job_id]
    _add_trial_ids(groups, await _trial_ids(db, row))
    body = _wire(row, groups)
    if is_viewed:
        body["viewer"] = "creator" if row["owner_user_id"] == caller.user_id else "member"
    return body


async def list_jobs(
    db: Database, caller: Caller, request: PageRequest, *, scope: JobListScope, search: str | None
) -> dict[str, Any]:
    """A page of Job bodies, newest first; without the lists of trial ids that a single read carries."""
    pool = await db.pool()
    started_at, job_id = request.after or (None, None)
    rows = await pool.fetch(
        f"{_COLUMNS} WHERE ({_SCOPES[scope]}) AND cardinality($2::text[]) >= 0 {_LIST}",
        caller.user_id,
        caller.org_ids,
        None if search is None else f"%{like_escape(search)}%",
        started_at,
        job_id,
        request.fetch,
    )
    groups = await _groups_of(db, [row["id"] for row in rows])
    return page(
        rows, request, lambda row: (row["started_at"], row["id"]), lambda row: _wire(row, groups[row["id"]])
    )


async def list_tasks(db: Database, caller: Caller, job_id: str, request: PageRequest) -> dict[str, Any]:
    """A page of JobTaskRollup, in the order of the plan."""
    await find_job(db, caller, job_id)
    pool = await db.pool()
    (after,) = request.after or (-1,)
    rollups: dict[int, list[Any]] = defaultdict(list)
    for row in await pool.fetch(_TASKS, job_id, after, request.fetch):
        rollups[row["first"]].append(row)
    return page(list(rollups.values()), request, lambda rows: (rows[0]["first"],), _rollup)


def like_escape(text: str) -> str:
    """Free text as a literal inside an ILIKE pattern."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


async def _groups_of(db: Database, job_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    pool = await db.pool()
    groups: dict[str, dict[str, Any]] = {job_id: {} for job_id in job_ids}
    for row in await pool.fetch(_GROUPS, list(job_ids)):
        sums = GroupSums(**{name: row[name] for name in GroupSums.model_fields})
        groups[row["job_id"]][row["evals_key"]] = sums.wire(row["pass_at_k"])
    return groups


async def _trial_ids(db: Database, job: Any) -> list[Any]:
    """Ids of the job's trials by what came of them. Those of a job that has ended are kept: they stay."""
    key = (job["id"], job["last_seq"])
    if key in _ended:
        _ended.move_to_end(key)
        return _ended[key]
    pool = await db.pool()
    rows = await pool.fetch(_TRIAL_IDS, job["id"])
    if JobStatus(job["status"]).is_terminal:
        _ended[key] = rows
        if len(_ended) > MAX_KEPT_JOBS:
            _ended.popitem(last=False)
    return rows


def _add_trial_ids(groups: dict[str, Any], rows: list[Any]) -> None:
    for group in groups.values():
        group.update({"reward_stats": {}, "exception_stats": {}})
    for row in rows:
        group, ids = groups[row["evals_key"]], row["ids"].split(",")
        for key, value in (row["rewards"] or {}).items():
            # As Python and Harbor write floats in a JSON object's key: `1.0`, `0.5`.
            group["reward_stats"].setdefault(key, {}).setdefault(repr(float(value)), []).extend(ids)
        if row["exception_type"] is not None:
            group["exception_stats"].setdefault(row["exception_type"], []).extend(ids)


def _wire(row: Any, groups: dict[str, Any]) -> dict[str, Any]:
    plan = JobPlan.model_validate(row["plan"])
    return {
        "kind": "job",
        "id": row["id"],
        "job_name": row["name"],
        "status": row["status"],
        **_plan_members(plan),
        "org": row["org"],
        "visibility": JobVisibility.PRIVATE.value,
        "n_total_trials": row["n_total_trials"],
        "trials": {"total": row["n_total_trials"], "byStatus": row["by_status"]},
        "stats": JobTotals(**row["totals"]).wire(row["by_status"], groups),
        "failure": None,
        "source_jobs": [plan.derivation.wire()] if plan.derivation else [],
        "is_regrade": plan.is_regrade,
        "viewer": None,
        "upload": None,
        "idempotent_replay": False,
        "paused_at": wire_time(row["paused_at"]) if row["status"] in _PAUSABLE else None,
        **(plan.derivation.marks() if plan.derivation else {}),
        "started_at": wire_time(row["started_at"]),
        "updated_at": wire_time(row["updated_at"]),
        "finished_at": wire_time(row["finished_at"]),
    }


def _plan_members(plan: JobPlan) -> dict[str, Any]:
    return {
        "datasets": [{"name": dataset.name, "version": dataset.version} for dataset in plan.datasets],
        "agents": [arm.wire() for arm in plan.arms],
        "n_attempts": plan.n_attempts,
        "n_concurrent_trials": plan.n_concurrent_trials,
        "max_trial_spend_usd": usd_of_nanos(plan.max_trial_spend_nanos),
        "worst_case_spend_usd": usd_of_nanos(plan.worst_case_spend_nanos),
        "retry": plan.retry.model_dump(mode="json"),
        "analyze": None,
        **plan.multipliers.wire(),
        "sandbox_provider": plan.sandbox_provider.value,
        "system_log": False,
        "counts": {"agents": len(plan.arms), "tasks": plan.n_tasks},
        "build_exclusions": [exclusion.wire() for exclusion in plan.build_exclusions],
    }


def _rollup(rows: list[Any]) -> dict[str, Any]:
    by_status = {status.value: 0 for status in TrialStatus}
    by_status.update({row["status"]: row["n"] for row in rows})
    scored = next((row for row in rows if row["status"] == TrialStatus.SCORED), None)
    costs = [row[name] for row in rows for name in ("agent_cost", "judge_cost") if row[name] is not None]
    return {
        "task_name": rows[0]["task_name"],
        "source": rows[0]["source"],
        "trials": {"total": sum(row["n"] for row in rows), "byStatus": by_status},
        "mean_reward": None if scored is None else scored["rewards"] / scored["n"],
        "cost_usd": sum(costs) if costs else None,
        "check": None,
    }
