"""Small builders of job requests and versions for tests."""

from __future__ import annotations

from typing import Any

from domain.jobs import JobCreate, JobPlan, PlannedJob
from domain.planning import Choices, JobRules, VersionTasks, plan_job
from domain.requests import parse_request
from domain.selection import SelectableTask
from domain.vocabulary import SandboxProvider

JOB_ID = "0a0a0a0a-0000-4000-8000-000000000001"


def request_body(**changes: Any) -> dict[str, Any]:
    return {"datasets": [{"name": "demo"}], "agents": [{"name": "oracle"}], **changes}


def make_request(**changes: Any) -> JobCreate:
    return parse_request(JobCreate, request_body(**changes))


def make_version(
    *names: str,
    dataset: str = "demo",
    failed: tuple[str, ...] = (),
    refusals: dict[str, dict[str, str]] | None = None,
    timeouts_sec: dict[str, dict[str, float]] | None = None,
) -> VersionTasks:
    tasks = [
        SelectableTask(
            name,
            name not in failed,
            "no such file" if name in failed else None,
            (refusals or {}).get(name, {}),
        )
        for name in (names or ("alpha", "beta", "gamma"))
    ]
    return VersionTasks(dataset, "1.0", f"version-of-{dataset}", tasks, timeouts_sec or {})


LOCAL = Choices([SandboxProvider.LOCAL])
SCRIPTED = Choices([SandboxProvider.LOCAL], rules=JobRules(upstreams=frozenset({"scripted", "lab"})))


def plan_trials(*versions: VersionTasks, choices: Choices = LOCAL, **changes: Any) -> PlannedJob:
    versions = versions or (make_version(),)
    changes.setdefault("datasets", [{"name": version.name} for version in versions])
    return plan_job(
        make_request(**changes),
        versions,
        job_id=JOB_ID,
        job_name="a job",
        choices=choices,
    )


def make_plan(*versions: VersionTasks, choices: Choices = LOCAL, **changes: Any) -> JobPlan:
    return plan_trials(*versions, choices=choices, **changes).plan
