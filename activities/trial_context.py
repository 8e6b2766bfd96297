"""What an activity knows of its trial, read once and kept while it cannot change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio import activity

from activities.bundles import Bundles
from activities.harnesses.base import Harness
from activities.harnesses.own import OwnHarness, built_path, read_own_agent
from activities.harnesses.roster import HARNESSES
from activities.packages import TaskPackages
from activities.sandboxes.base import BoxRole, BoxTag, SandboxProvider
from activities.settings import WorkerSettings
from activities.signatures import AttemptRef
from domain.arms import AgentArm
from domain.errors import EvolveError
from domain.jobs import JobPlan
from domain.providers import ProviderCapabilities
from domain.support import unenforced_sizes
from domain.task_scalars import MAX_BUILD_SEC
from domain.task_steps import SETUP_TIMEOUT_SEC, TaskStep
from domain.tasks import Task
from domain.vocabulary import AttemptPhase
from domain.vocabulary import SandboxProvider as SandboxProviderName
from store.blobs import Blobs
from store.database import Database
from store.fences import Fence
from store.server_secret import ServerSecret

CACHED_JOBS = 64
CACHED_TASKS = 2_000
CACHED_TRIALS = 2_000


@dataclass(frozen=True)
class StoredTask:
    """A published task: parsed, and where its directory is."""

    task: Task
    package_key: str
    package_sha256: str
    image_digest: str
    """Content digest of `environment/` with the pinned image's name: what an image is built once per."""


@dataclass(frozen=True)
class StoredJob:
    """A job as accepted: its plan, and who pays."""

    plan: JobPlan
    owner_user_id: str
    org_id: str


@dataclass(frozen=True)
class TrialContext:
    """One attempt of one trial with all that was planned for it."""

    attempt: AttemptRef
    task_name: str
    source: str
    version_id: str
    job: StoredJob
    arm: AgentArm
    stored: StoredTask
    harness: Harness

    @property
    def task(self) -> Task:
        """As its agent and verifier meet it: of a multi-step task, the attempt's step, if it is of one."""
        return self.stored.task.at_step(self.attempt.step)

    @property
    def step(self) -> TaskStep | None:
        """The step that the attempt is of; None for the attempt as a whole."""
        position = self.attempt.step
        return None if position is None else self.stored.task.steps[position]

    @property
    def step_name(self) -> str:
        """Empty where there is no step."""
        return self.step.name if self.step else ""

    def place(self, path: str) -> str:
        """Where an output stands in the trial's folder: a step's in the step's own."""
        return f"{self.step.folder}/{path}" if self.step else path

    def process_name(self, name: str) -> str:
        """A process of the box: each step has its own."""
        position = self.attempt.step
        return name if position is None else f"{name}-{position + 1}"

    @property
    def plan(self) -> JobPlan:
        return self.job.plan

    @property
    def agent_timeout_sec(self) -> float:
        """Declared, stretched by the job."""
        return self.task.agent_timeout_sec * self.plan.multipliers.of("agent")

    @property
    def verifier_timeout_sec(self) -> float:
        """Declared, stretched by the job."""
        return self.task.verifier_timeout_sec * self.plan.multipliers.of("verifier")

    @property
    def lifetime_sec(self) -> float:
        """How long everything that runs in the attempt's box may take."""
        setups_sec = len(self.stored.task.steps) * SETUP_TIMEOUT_SEC
        return self.agent_timeout_sec + self.verifier_timeout_sec + setups_sec

    @property
    def build_timeout_sec(self) -> float:
        """Of the task's image: declared, stretched by the job."""
        return self.build_limit_sec(self.task.build_timeout_sec)

    def build_limit_sec(self, declared_sec: float) -> float:
        """The same for whatever image the task declares; see `MAX_BUILD_SEC`."""
        return min(declared_sec * self.plan.multipliers.of("environment_build"), MAX_BUILD_SEC)


@dataclass
class Hands:
    """What every activity works with: the store, this host's providers, the caches."""

    settings: WorkerSettings
    db: Database
    blobs: Blobs
    installation_id: str
    providers: dict[str, SandboxProvider]
    default_provider: str
    capabilities: Mapping[SandboxProviderName, ProviderCapabilities]
    packages: TaskPackages
    bundles: Bundles
    secret: ServerSecret
    has_search_attributes: bool = False
    trials: dict[str, Any] = field(default_factory=dict[str, Any])
    jobs: dict[str, StoredJob] = field(default_factory=dict[str, StoredJob])
    own: dict[str, OwnHarness] = field(default_factory=dict[str, OwnHarness])
    tasks: dict[tuple[str, str], StoredTask] = field(default_factory=dict[tuple[str, str], StoredTask])

    async def load(self, attempt: AttemptRef) -> TrialContext:
        """The trial with its plan; raises `EvolveError` when the job was deleted."""
        row = self.trials.get(attempt.trial_id)
        if row is None:
            row = await self._trial(attempt.trial_id)
            _remember(self.trials, attempt.trial_id, row, CACHED_TRIALS)
        job = await self._job(attempt.job_id)
        arm = job.plan.arms[row["arm_index"]]
        return TrialContext(
            attempt=attempt,
            task_name=row["task_name"],
            source=row["source"],
            version_id=row["version_id"],
            job=job,
            arm=arm,
            stored=await self.stored_task(row["version_id"], row["task_name"]),
            harness=await self._harness(arm),
        )

    async def _harness(self, arm: AgentArm) -> Harness:
        """A built-in one, else the revision of a registered agent that the arm pinned."""
        if arm.registration is None:
            return HARNESSES[arm.name]
        own = self.own.get(arm.registration)
        if own is None:
            agent = await read_own_agent(self.db, arm.registration)
            own = OwnHarness(agent, built_path(self.settings.state_dir, arm.registration))
            _remember(self.own, arm.registration, own, CACHED_JOBS)
        return own

    async def _trial(self, trial_id: str) -> Any:
        """What a trial was planned as, which never changes."""
        pool = await self.db.pool()
        row = await pool.fetchrow(
            "SELECT task_name, source, version_id, arm_index FROM trials WHERE id = $1", trial_id
        )
        if row is None:
            raise EvolveError(f"trial {trial_id} was deleted", code="trial_not_found")
        return row

    async def _job(self, job_id: str) -> StoredJob:
        job = self.jobs.get(job_id)
        if job is None:
            pool = await self.db.pool()
            row = await pool.fetchrow("SELECT plan, owner_user_id, org_id FROM jobs WHERE id = $1", job_id)
            if row is None:
                raise EvolveError(f"job {job_id} was deleted", code="job_not_found")
            job = StoredJob(JobPlan.model_validate(row["plan"]), row["owner_user_id"], row["org_id"])
            _remember(self.jobs, job_id, job, CACHED_JOBS)
        return job

    async def stored_task(self, version_id: str, task_name: str) -> StoredTask:
        """A task of a version; READY ones never change."""
        key = (version_id, task_name)
        stored = self.tasks.get(key)
        if stored is None:
            pool = await self.db.pool()
            row = await pool.fetchrow(
                "SELECT task, package_key, package_sha256, image_digest FROM dataset_tasks"
                " WHERE version_id = $1 AND task_name = $2",
                *key,
            )
            if row is None:
                raise EvolveError(f"task {task_name} was deleted", code="task_not_found")
            stored = StoredTask(
                Task.model_validate(row["task"]),
                row["package_key"],
                row["package_sha256"],
                row["image_digest"],
            )
            _remember(self.tasks, key, stored, CACHED_TASKS)
        return stored

    def provider(self, name: str) -> SandboxProvider:
        """A provider of this host."""
        if name not in self.providers:
            raise EvolveError(f"this host serves no provider {name}", code="provider_unsupported")
        return self.providers[name]

    def unenforced_sizes(self, task: Task, provider: str) -> list[str]:
        """What the task declares and a provider of this host cannot hold it to."""
        return unenforced_sizes(task, self.capabilities[SandboxProviderName(provider)])

    async def task_dir(self, stored: StoredTask) -> Path:
        """The task's directory on this host."""
        return await self.packages.directory(stored.package_key, stored.package_sha256)


def _remember(cache: dict[Any, Any], key: Any, value: Any, limit: int) -> None:
    """Keep a value; the oldest goes when there are too many."""
    if len(cache) >= limit:
        del cache[next(iter(cache))]
    cache[key] = value


def fence_of(attempt: AttemptRef, phase: AttemptPhase) -> Fence:
    """The running activity's place: its try is Temporal's."""
    return Fence(
        job_id=attempt.job_id,
        trial_id=attempt.trial_id,
        attempt_number=attempt.attempt_number,
        phase=phase,
        try_number=activity.info().attempt,
        turn=attempt.turn,
        step=attempt.step,
    )


def box_tag(installation_id: str, attempt: AttemptRef, role: BoxRole = "agent") -> BoxTag:
    """The tag of an attempt's box, made by the running activity's try."""
    return BoxTag(
        installation_id=installation_id,
        job_id=attempt.job_id,
        trial_id=attempt.trial_id,
        attempt_number=attempt.attempt_number,
        step=0,
        role=role,
        fence=activity.info().attempt,
    )
