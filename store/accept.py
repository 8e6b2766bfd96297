"""Accepting a job: one transaction with its plan, trials, statistics, first event, intent and key.

The API and an activity (for a job that a Temporal client started) share this one function.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from domain import events, stats
from domain.errors import ApiError
from domain.jobs import DatasetSelector, JobCreate, JobPlan, PlannedJob
from domain.planning import Choices, JobRules, VersionTasks, plan_job
from domain.rosters import ROSTERS
from domain.selection import SelectableTask
from domain.vocabulary import DatasetVersionState, SandboxProvider
from store.accounts import Caller
from store.agents import registrations_of
from store.budgets import refuse_without_credits
from store.database import Database, now
from store.events import append_events
from store.intents import IntentKind, add_intent
from store.orgs import owning_org
from store.prices import current_prices

CREATE_VERB = "create"
_NOT_YET = (SandboxProvider.E2B, SandboxProvider.DAYTONA, SandboxProvider.MODAL)

# Locked, so that the dataset cannot be deleted between the plan and its trials.
_DATASET = "SELECT id, active_version_id FROM datasets WHERE name = $1 AND org_id = ANY($2) FOR SHARE"
_LABEL = """
SELECT id, version, state FROM dataset_versions
WHERE dataset_id = $1 AND version = $2 AND replaced_at IS NULL
"""
_ACTIVE = "SELECT id, version, state FROM dataset_versions WHERE id = $1"
_TASKS = """
SELECT task_name, state, verdicts, failure ->> 'message' AS failure, agent_timeout_sec, verifier_timeout_sec
FROM dataset_tasks WHERE version_id = $1 ORDER BY ordinal
"""
_NEWEST_HOST = "SELECT providers, default_provider FROM hosts ORDER BY lease_expires_at DESC LIMIT 1"
_INSERT_JOB = """
INSERT INTO jobs (id, owner_user_id, org_id, name, status, plan, n_total_trials, by_status, totals,
                  workflow_id, idempotency_verb, idempotency_key, fingerprint, last_seq,
                  started_at, updated_at)
VALUES ($1, $2, $3, $4, 'QUEUED', $5, $6, $7, $8, $9, $10, $11, $12, 0, $13, $13)
"""
_INSERT_TRIALS = """
INSERT INTO trials (id, job_id, index, task_name, source, version_id, arm_index, attempt, evals_key, status,
                    attempt_number, fence_phase, fence_try, result, n_retries, retries)
SELECT u.*, 'QUEUED', 1, 0, 0, '{}', 0, '[]'
FROM (SELECT unnest($2::text[]), $1::text, unnest($3::int[]), unnest($4::text[]), unnest($5::text[]),
             unnest($6::text[]), unnest($7::int[]), unnest($8::int[]), unnest($9::text[])) u
"""
_INSERT_GROUP = """
INSERT INTO job_groups (job_id, evals_key, arm_index, source, n_total, n_settled, n_rewarded, n_errors,
                        reward_sum, is_binary, pass_at_k)
VALUES ($1, $2, $3, $4, $5, 0, 0, 0, 0, true, '{}')
"""


@dataclass(frozen=True)
class Accepted:
    """The job that answers the request; `is_replay` when an earlier request with the same key made it."""

    job_id: str
    is_replay: bool


@dataclass(frozen=True)
class Origin:
    """Where a job comes from.

    With `job_id`, a second call finds the job of the first. Without `workflow_id` it is `job/<id>` and an
    intent to start it is written too: a job that a workflow brought runs already.
    """

    job_id: str | None = None
    workflow_id: str | None = None
    idempotency_key: str | None = None


NEW_HERE, DEFAULT_RULES = Origin(), JobRules()


async def accept_job(
    db: Database,
    caller: Caller,
    request: JobCreate,
    origin: Origin = NEW_HERE,
    rules: JobRules = DEFAULT_RULES,
) -> Accepted:
    """Write the job or refuse it with `ApiError`; nothing is written when it is refused."""
    request.refuse_unhonoured()
    prices = await current_prices(db)
    async with db.transaction() as connection:
        earlier = await _find_earlier(connection, caller, request, origin)
        if earlier is not None:
            return Accepted(earlier, is_replay=True)
        org_id = await owning_org(connection, caller, request.org)
        await refuse_without_credits(connection, caller.user_id)
        at = now()
        versions = await _resolve_versions(connection, caller, request)
        named = [agent.name for agent in request.agents if agent.name not in ROSTERS]
        choices = Choices(
            default_providers=await _providers(connection, request),
            registrations=await registrations_of(connection, caller, named),
            rules=rules,
            prices=prices,
        )
        job_id = origin.job_id or str(uuid4())
        job_name = request.job_name or at.strftime("%Y-%m-%d__%H-%M-%S")
        planned = plan_job(request, versions, job_id=job_id, job_name=job_name, choices=choices)
        identity = (caller.user_id, org_id, origin.workflow_id or f"job/{job_id}")
        await _insert(connection, planned, identity, _key(request, origin), at)
        await append_events(connection, job_id, [events.job_created(planned.plan)])
        if origin.workflow_id is None:
            await add_intent(connection, IntentKind.START_JOB, job_id)
    return Accepted(job_id, is_replay=False)


def _key(request: JobCreate, origin: Origin) -> tuple[str | None, str | None, str | None]:
    if origin.idempotency_key is None:
        return None, None, None
    return CREATE_VERB, origin.idempotency_key, request.fingerprint()


async def _find_earlier(connection: Any, caller: Caller, request: JobCreate, origin: Origin) -> str | None:
    if origin.job_id is not None:
        return await connection.fetchval("SELECT id FROM jobs WHERE id = $1", origin.job_id)
    key = origin.idempotency_key
    if key is None:
        return None
    # Two requests with one key at the same time: the second waits, then finds the first's job.
    lock = f"{caller.user_id}/{CREATE_VERB}/{key}"
    await connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock)
    row = await connection.fetchrow(
        "SELECT id, fingerprint FROM jobs"
        " WHERE owner_user_id = $1 AND idempotency_verb = $2 AND idempotency_key = $3",
        caller.user_id,
        CREATE_VERB,
        key,
    )
    if row is None:
        return None
    if row["fingerprint"] != request.fingerprint():
        message = "This Idempotency-Key was used for a different request."
        raise ApiError("idempotency_key_reused", message, details={"job_id": row["id"]})
    return row["id"]


async def _resolve_versions(connection: Any, caller: Caller, request: JobCreate) -> list[VersionTasks]:
    return [
        await _resolve_version(connection, caller, selector, f"datasets[{position}]")
        for position, selector in enumerate(request.datasets)
    ]


async def _resolve_version(
    connection: Any, caller: Caller, selector: DatasetSelector, param: str
) -> VersionTasks:
    dataset = await connection.fetchrow(_DATASET, selector.name, caller.org_ids)
    if dataset is None:
        message = f"{param}.name: no dataset {selector.name}."
        raise ApiError("dataset_not_found", message, param=f"{param}.name")
    if selector.version is not None:
        version = await connection.fetchrow(_LABEL, dataset["id"], selector.version)
    else:
        version = await connection.fetchrow(_ACTIVE, dataset["active_version_id"])
    _refuse_version(selector, version, param)
    return await _version_tasks(connection, selector.name, version)


def _refuse_version(selector: DatasetSelector, version: Any, param: str) -> None:
    if version is None and selector.version is None:
        message = f"{param}.name: {selector.name} has no active version; name one."
        raise ApiError("no_active_version", message, param=f"{param}.name")
    if version is None:
        message = f"{param}.version: {selector.name} has no version {selector.version}."
        raise ApiError("dataset_version_not_found", message, param=f"{param}.version")
    if version["state"] != DatasetVersionState.READY:
        message = f"{param}.version: {selector.name}@{version['version']} is {version['state']}, not READY."
        details = {"version": version["version"], "state": version["state"]}
        raise ApiError("version_not_ready", message, param=f"{param}.version", details=details)


async def _version_tasks(connection: Any, name: str, version: Any) -> VersionTasks:
    rows = await connection.fetch(_TASKS, version["id"])
    tasks = [
        SelectableTask(
            name=row["task_name"],
            is_ready=row["state"] == "READY",
            failure=row["failure"],
            refusals={
                provider: verdict.get("reason") or "refused"
                for provider, verdict in row["verdicts"].items()
                if not verdict.get("ok")
            },
        )
        for row in rows
    ]
    timeouts_sec = {
        row["task_name"]: {
            "agent": row["agent_timeout_sec"] or 0.0,
            "verifier": row["verifier_timeout_sec"] or 0.0,
        }
        for row in rows
    }
    return VersionTasks(name, version["version"], version["id"], tasks, timeouts_sec)


async def _providers(connection: Any, request: JobCreate) -> list[SandboxProvider]:
    """What the newest host offers, its default first, whether its worker is up or away.

    Refuses a provider that is asked for and not offered.
    """
    host = await connection.fetchrow(_NEWEST_HOST)
    asked = request.sandbox_provider
    if asked is None:
        return _offered(host) if host else [SandboxProvider.LOCAL]
    if SandboxProvider(asked) in _NOT_YET:
        message = f"sandbox_provider: {asked} is not in this release."
        raise ApiError("feature_unsupported", message, param="sandbox_provider")
    offer = host["providers"].get(asked, {"ok": False, "reason": "not offered"}) if host else {"ok": True}
    if not offer["ok"]:
        message = f"sandbox_provider: {asked} cannot run here: {offer.get('reason')}."
        raise ApiError(
            "provider_unsupported", message, param="sandbox_provider", details={"refused_tasks": []}
        )
    return [SandboxProvider(asked)]


def _offered(host: Any) -> list[SandboxProvider]:
    default = host["default_provider"]
    others = [name for name, offer in host["providers"].items() if offer["ok"] and name != default]
    return [SandboxProvider(name) for name in (default, *sorted(others))]


async def _insert(
    connection: Any,
    planned: PlannedJob,
    identity: tuple[str, str, str],
    key: tuple[str | None, str | None, str | None],
    at: datetime,
) -> None:
    plan = planned.plan
    owner_user_id, org_id, workflow_id = identity
    await connection.execute(
        _INSERT_JOB,
        plan.job_id,
        owner_user_id,
        org_id,
        plan.job_name,
        plan.model_dump(mode="json"),
        plan.n_trials,
        stats.empty_tally(plan.n_trials),
        stats.JobTotals().model_dump(),
        workflow_id,
        *key,
        at,
    )
    await _insert_trials(connection, planned)
    await connection.executemany(_INSERT_GROUP, list(_groups(plan)))


async def _insert_trials(connection: Any, planned: PlannedJob) -> None:
    plan = planned.plan
    slots = list(planned.slots())
    keys = plan.evals_keys()
    await connection.execute(
        _INSERT_TRIALS,
        plan.job_id,
        [slot.trial_id for slot in slots],
        [slot.index for slot in slots],
        [slot.task_name for slot in slots],
        [slot.source for slot in slots],
        [slot.version_id for slot in slots],
        [slot.arm_index for slot in slots],
        [slot.attempt for slot in slots],
        [keys[slot.arm_index, slot.source] for slot in slots],
    )


def _groups(plan: JobPlan) -> list[tuple[str, str, int, str, int]]:
    n_tasks = {dataset.name: dataset.n_tasks for dataset in plan.datasets}
    return [
        (plan.job_id, key, arm_index, dataset, n_tasks[dataset] * plan.n_attempts)
        for (arm_index, dataset), key in plan.evals_keys().items()
    ]
