"""Regrades: a new job in which separate verifiers judge again what was recorded (contract §6.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from domain.derivation import SourceJob, SourceTrial
from domain.jobs import DatasetSelector, DatasetVersionRef
from domain.judges import judge_families
from domain.regrading import (
    DatasetVersionInput,
    Evidence,
    RegradeRequest,
    TrialRegradeRequest,
    VerifierTask,
    select_regrade,
    select_regrade_of_one,
)
from domain.tasks import EnvValue
from store.accept import resolve_version
from store.accounts import Caller
from store.database import Database
from store.derived import Chosen, insert_derived, lock_source, naming_the_trial
from store.new_job import Accepted
from store.trial_reads import find_trial
from store.verifier_inputs import MEMBER

Selection: TypeAlias = Callable[[SourceJob, Mapping[str, Evidence]], Sequence[SourceTrial]]

# Each trial with the task whose verifier is to judge it: its own, or the one of its name in version $2.
_EVIDENCE = """
SELECT id, coalesce($2, version_id) AS version_id, task_name,
       result ->> 'verifier_environment_mode' AS mode,
       (result #>> ARRAY[$3, 'attempt_number'])::int = attempt_number AS has_inputs
FROM trials WHERE job_id = $1
"""
_TASKS = """
SELECT version_id, task_name, verdicts -> $3 AS verdict, task ->> 'verifier_mode' AS verifier_mode,
       coalesce(jsonb_array_length(task -> 'steps'), 0) > 0 AS has_steps,
       task -> 'verifier_env' AS verifier_env
FROM dataset_tasks
WHERE state = 'READY' AND (version_id, task_name) IN
      (SELECT coalesce($2, version_id), task_name FROM trials WHERE job_id = $1)
"""


@dataclass(frozen=True)
class _Tests:
    """The version that a changed verifier comes from."""

    version_id: str
    reference: DatasetVersionRef


async def regrade_job(db: Database, caller: Caller, job_id: str, request: RegradeRequest) -> Accepted:
    """A new job over the eligible trials; raises what `select_regrade` does, and `job_not_found`."""
    return await _regrade(
        db, caller, job_id, request.with_tests, lambda source, kept: select_regrade(source, kept, request)
    )


async def regrade_trial(
    db: Database, caller: Caller, trial_id: str, request: TrialRegradeRequest
) -> Accepted:
    """A new job over one trial; raises what `select_regrade_of_one` does, and `trial_not_found`."""
    trial = await find_trial(db, caller, trial_id)
    with naming_the_trial(trial_id):
        return await _regrade(
            db,
            caller,
            trial["job_id"],
            request.with_tests,
            lambda source, kept: select_regrade_of_one(source, kept, trial_id),
        )


async def _regrade(
    db: Database, caller: Caller, job_id: str, with_tests: DatasetVersionInput | None, select: Selection
) -> Accepted:
    async with db.transaction() as connection:
        row, source = await lock_source(connection, caller, job_id)
        tests = await _tests(connection, caller, with_tests)
        version_id = tests.version_id if tests else None
        evidence = await _evidence(connection, source, version_id)
        chosen = Chosen(
            action="regrade",
            trials=select(source, evidence),
            version_id=version_id,
            with_tests=tests.reference if tests else None,
        )
        return await insert_derived(connection, caller, row["org_id"], source, chosen)


async def _tests(connection: Any, caller: Caller, wanted: DatasetVersionInput | None) -> _Tests | None:
    if wanted is None:
        return None
    selector = DatasetSelector(name=wanted.name, version=wanted.version)
    found = await resolve_version(connection, caller, selector, "with_tests")
    return _Tests(found.version_id, DatasetVersionRef(name=found.name, version=found.version))


async def _evidence(connection: Any, source: SourceJob, version_id: str | None) -> dict[str, Evidence]:
    """By trial id."""
    job_id, provider = source.plan.job_id, source.plan.sandbox_provider.value
    tasks = {
        (row["version_id"], row["task_name"]): _task(row)
        for row in await connection.fetch(_TASKS, job_id, version_id, provider)
    }
    return {
        row["id"]: Evidence(
            was_shared=row["mode"] == "shared",
            has_inputs=bool(row["has_inputs"]),
            task=tasks.get((row["version_id"], row["task_name"])),
        )
        for row in await connection.fetch(_EVIDENCE, job_id, version_id, MEMBER)
    }


def _task(row: Any) -> VerifierTask:
    verdict: dict[str, Any] = row["verdict"] or {}
    env = {name: EnvValue.model_validate(value) for name, value in (row["verifier_env"] or {}).items()}
    return VerifierTask(
        is_separate=row["verifier_mode"] == "separate",
        has_steps=row["has_steps"],
        has_judge=bool(judge_families(env)),
        refusal=None if verdict.get("ok") else verdict.get("reason") or "the job's provider refuses its task",
    )
