"""Trials as the wire shows them, and their kept files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from domain.arms import AgentArm
from domain.errors import ApiError
from domain.jobs import Derivation
from domain.money import usd_of_nanos
from domain.trials import TrialColumns, trial_wire
from domain.vocabulary import AttemptPhase, TrialStatus
from store.accounts import Caller
from store.database import Database
from store.job_reads import find_job
from store.pages import PageRequest, page

_COLUMNS = """
SELECT t.*, EXISTS (SELECT FROM trial_files f WHERE f.trial_id = t.id
                    AND f.attempt_number = t.attempt_number) AS has_files
"""
_LIST = f"""
{_COLUMNS} FROM trials t
WHERE t.job_id = $1 AND t.index > $2
  AND ($3::text[] IS NULL OR t.status = ANY($3)) AND ($4::text IS NULL OR t.source = $4)
ORDER BY t.index LIMIT $5
"""
_VISIBLE = """
FROM trials t JOIN jobs j ON j.id = t.job_id
WHERE t.id = ANY($1) AND (j.owner_user_id = $2 OR j.org_id = ANY($3))
"""
_PLAN = """
, j.plan -> 'arms' AS arms, (j.plan ->> 'max_trial_spend_nanos')::bigint AS max_trial_spend_nanos,
  j.plan -> 'derivation' AS derivation
"""
_ONE = f"{_COLUMNS} {_PLAN} {_VISIBLE}"
_FILES = """
SELECT path, size_bytes FROM trial_files
WHERE trial_id = $1 AND attempt_number = $2 AND path > $3 ORDER BY path LIMIT $4
"""

TRIALS_CURSOR = (int,)
FILES_CURSOR = (str,)


async def list_trials(
    db: Database,
    caller: Caller,
    job_id: str,
    request: PageRequest,
    *,
    statuses: Sequence[str] | None,
    source: str | None,
) -> dict[str, Any]:
    """A page of Trial, by index; raises `job_not_found`."""
    job = await find_job(db, caller, job_id)
    arms = [AgentArm.model_validate(arm) for arm in job["plan"]["arms"]]
    cap_usd = usd_of_nanos(job["plan"]["max_trial_spend_nanos"])
    marks = _marks(job["plan"].get("derivation"))
    pool = await db.pool()
    (after,) = request.after or (-1,)
    rows = await pool.fetch(_LIST, job_id, after, statuses, source, request.fetch)
    return page(
        rows,
        request,
        lambda row: (row["index"],),
        lambda row: _wire(row, arms[row["arm_index"]], cap_usd, is_list_row=True) | marks,
    )


async def find_trial(db: Database, caller: Caller, trial_id: str) -> Any:
    """The trial's row; raises `trial_not_found` for one the caller cannot see."""
    pool = await db.pool()
    row = await pool.fetchrow(_ONE, [trial_id], caller.user_id, caller.org_ids)
    if row is None:
        raise ApiError("trial_not_found", f"No trial {trial_id}.")
    return row


async def read_trial(db: Database, caller: Caller, trial_id: str) -> dict[str, Any]:
    """The Trial body with its whole message; raises `trial_not_found`."""
    return _single(await find_trial(db, caller, trial_id))


async def read_trials(db: Database, caller: Caller, trial_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Trial bodies by id; what the caller cannot see is left out."""
    pool = await db.pool()
    rows = await pool.fetch(_ONE, list(trial_ids), caller.user_id, caller.org_ids)
    return {row["id"]: _single(row) for row in rows}


async def list_files(db: Database, trial: Any, request: PageRequest) -> dict[str, Any]:
    """A page of TrialFile of the newest attempt number, by path."""
    pool = await db.pool()
    (after,) = request.after or ("",)
    rows = await pool.fetch(_FILES, trial["id"], trial["attempt_number"], after, request.fetch)
    return page(rows, request, lambda row: (row["path"],), dict)


async def find_file(db: Database, trial: Any, path: str) -> Any:
    """A kept file's row (`blob_key`, `size_bytes`, `sha256`), or None."""
    pool = await db.pool()
    return await pool.fetchrow(
        "SELECT * FROM trial_files WHERE trial_id = $1 AND attempt_number = $2 AND path = $3",
        trial["id"],
        trial["attempt_number"],
        path,
    )


async def retired_output(db: Database, trial: Any, path: str) -> str | None:
    """Why a file is not the trial's though one of its name is stored: a retry retired it (contract 6.3)."""
    pool = await db.pool()
    attempt_number = await pool.fetchval(
        "SELECT max(attempt_number) FROM trial_files"
        " WHERE trial_id = $1 AND attempt_number < $2 AND path = $3",
        trial["id"],
        trial["attempt_number"],
        path,
    )
    if attempt_number is None:
        return None
    return f"attempt number {attempt_number} was retried, and its output is not the trial's"


async def files_under(db: Database, trial: Any, prefix: str) -> list[Any]:
    """Rows of the kept files below a folder, by path."""
    pool = await db.pool()
    return await pool.fetch(
        "SELECT * FROM trial_files WHERE trial_id = $1 AND attempt_number = $2"
        " AND starts_with(path, $3) ORDER BY path",
        trial["id"],
        trial["attempt_number"],
        prefix,
    )


def _single(row: Any) -> dict[str, Any]:
    arm = AgentArm.model_validate(row["arms"][row["arm_index"]])
    body = _wire(row, arm, usd_of_nanos(row["max_trial_spend_nanos"]), is_list_row=False)
    return body | _marks(row["derivation"])


def is_regrade(trial: Any) -> bool:
    """Whether a row of `find_trial` is a verifier's second judgement: it has no folder (contract §6.6)."""
    return trial["derivation"] is not None and trial["derivation"]["action"] == "regrade"


def _marks(derivation: Any) -> dict[str, Any]:
    return {} if derivation is None else Derivation.model_validate(derivation).marks()


def _wire(row: Any, arm: AgentArm, cap_usd: float, *, is_list_row: bool) -> dict[str, Any]:
    columns = TrialColumns(
        id=row["id"],
        job_id=row["job_id"],
        task_name=row["task_name"],
        source=row["source"],
        attempt=row["attempt"],
        status=TrialStatus(row["status"]),
        reward=row["reward"],
        phase=None if row["phase"] is None else AttemptPhase(row["phase"]),
        n_retries=row["n_retries"],
        retries=row["retries"],
        sandbox_id=row["sandbox_id"],
        has_files=row["has_files"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        source_trial_id=row["source_trial_id"],
        evals_key=row["evals_key"],
    )
    return trial_wire(columns, row["result"], arm, max_trial_spend_usd=cap_usd, is_list_row=is_list_row)
