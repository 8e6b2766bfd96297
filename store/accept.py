"""Accepting a job: one transaction with its plan, trials, statistics, first event, intent and key.

The API and an activity (for a job that a Temporal client started) share this one function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from domain.errors import ApiError
from domain.jobs import DatasetSelector, JobCreate
from domain.planning import Choices, JobRules, VersionTasks, plan_job
from domain.rosters import ROSTERS
from domain.selection import SelectableTask
from domain.vocabulary import DatasetVersionState, SandboxProvider
from store.accounts import Caller
from store.agents import registrations_of
from store.budgets import refuse_without_credits
from store.database import Database, now
from store.new_job import Accepted, IdempotencyKey, NewJob, find_earlier, insert_job
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
        new = NewJob(
            plan=planned.plan,
            slots=list(planned.slots()),
            owner_user_id=caller.user_id,
            org_id=org_id,
            at=at,
            key=_key(request, origin),
            workflow_id=origin.workflow_id,
        )
        await insert_job(connection, new)
    return Accepted(job_id, is_replay=False)


async def _find_earlier(connection: Any, caller: Caller, request: JobCreate, origin: Origin) -> str | None:
    if origin.job_id is not None:
        return await connection.fetchval("SELECT id FROM jobs WHERE id = $1", origin.job_id)
    return await find_earlier(connection, caller.user_id, _key(request, origin))


def _key(request: JobCreate, origin: Origin) -> IdempotencyKey | None:
    if origin.idempotency_key is None:
        return None
    return IdempotencyKey(CREATE_VERB, origin.idempotency_key, request.fingerprint())


async def _resolve_versions(connection: Any, caller: Caller, request: JobCreate) -> list[VersionTasks]:
    return [
        await resolve_version(connection, caller, selector, f"datasets[{position}]")
        for position, selector in enumerate(request.datasets)
    ]


async def resolve_version(
    connection: Any, caller: Caller, selector: DatasetSelector, param: str
) -> VersionTasks:
    """A READY version of a dataset that the caller sees; it stays until the end of the transaction.

    Raises the refusals of contract §2.7, their `param` below this one.
    """
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
