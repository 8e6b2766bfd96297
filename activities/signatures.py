"""Names and types of every activity: what `workflows` may know of the hands. No implementation here.

Payloads hold references, never content: a workflow's history must stay small and free of secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from domain.breaker import Breaker
from domain.reaping import Leftover

Input = TypeVar("Input", bound=BaseModel)
Result = TypeVar("Result", bound=BaseModel)


class Payload(BaseModel):
    """Base of inputs and results. Unknown members are ignored, so that older code reads newer payloads."""

    model_config = ConfigDict(frozen=True, extra="ignore")


@dataclass(frozen=True)
class Signature(Generic[Input, Result]):
    """One activity: its name on the wire and its two types."""

    name: str
    input_type: type[Input]
    result_type: type[Result]


class Nothing(Payload):
    """The result of an activity that only acts."""


# --- one trial -------------------------------------------------------------------------------------


class AttemptRef(Payload):
    """One attempt number of one trial: what every activity of a trial is idempotent by.

    `turn` counts how often it waited for capacity: what a turn writes outranks the turns before it.
    `step` is the position of the multi-step task's step that this is of, null for the attempt as a whole.
    """

    job_id: str
    trial_id: str
    attempt_number: int = 1
    turn: int = 0
    step: int | None = None


class LostHost(Payload):
    """The host of an attempt is dead, and `why`: what waits for it there is waited for no longer."""

    host_id: str
    attempt_number: int
    why: str


class Placement(Payload):
    """Where the attempt runs, or why it does not (yet).

    `is_settled`: the trial has ended already and nothing is to be done. `waiting_for`: no room; ask again.
    """

    is_settled: bool = False
    waiting_for: str | None = None
    provider: str = ""
    host_id: str = ""
    queue: str = ""
    follow_queue: str = ""
    is_probe: bool = False
    """The provider is failing, and this trial alone is let through: it says how that went."""
    search: dict[str, str] = {}
    """What the workflow is to be found by; empty where its namespace has no such attributes."""


class LeftPlace(Placement):
    """Where a workflow that was ended from outside had come to; `turn` outranks all that it began."""

    attempt_number: int
    turn: int


class CapacityWaited(AttemptRef):
    """The turn that begins when a provider had no room, and what that said."""

    waiting_for: str


class PlacedAttempt(AttemptRef):
    """An attempt that holds a lease on a host."""

    provider: str
    host_id: str


class HarnessPlace(Payload):
    """Where an agent is in its box: its user (null is root), HOME, bundle folder and exact version."""

    user: str | None = None
    home: str = "/root"
    bundle: str | None = None
    version: str | None = None


class StepPlan(Payload):
    """One step of a multi-step task. Timeouts are the declared ones, stretched by the job."""

    name: str = ""
    position: int | None = None
    agent_timeout_sec: float
    verifier_timeout_sec: float


class OpenedBox(Payload):
    """The box of an attempt, its harness installed; of a multi-step task, only its bundle is there.

    Timeouts are the declared ones, stretched by the job; those of steps are their own.
    """

    box_id: str
    agent_timeout_sec: float
    verifier_timeout_sec: float
    harness: HarnessPlace = HarnessPlace()
    steps: list[StepPlan] = []

    @property
    def parts(self) -> list[StepPlan]:
        """What the attempt goes through in order; a task without steps is one that has no position."""
        alone = StepPlan(
            agent_timeout_sec=self.agent_timeout_sec, verifier_timeout_sec=self.verifier_timeout_sec
        )
        return self.steps or [alone]


class BoxedAttempt(PlacedAttempt):
    """An attempt that has its box."""

    box_id: str
    timeout_sec: float
    harness: HarnessPlace = HarnessPlace()


class StepReady(Payload):
    """Whether the agent of a step can start; `problem` says why it cannot."""

    problem: str | None = None


class AgentEnd(Payload):
    """How the agent ended. `exit_code` is null where no process ran or it was killed.

    `cause` is a word of `domain.causes`; `message` says it where the cause alone does not.
    """

    exit_code: int | None = None
    is_timeout: bool = False
    cause: str | None = None
    message: str | None = None


class VerifierInput(BoxedAttempt):
    """The verifier starts when the agent is over."""

    agent: AgentEnd


class VerifierEnd(Payload):
    """How the verifier ended. Its rewards are in the store already; `problem` says why there are none.

    `unmet_gate` says why no step follows one that scored less than it had to.
    """

    exit_code: int | None = None
    is_timeout: bool = False
    problem: str | None = None
    unmet_gate: str | None = None

    @property
    def lets_go_on(self) -> bool:
        """Whether the next step follows."""
        return self.problem is None and not self.is_timeout and self.unmet_gate is None


FailureKind = Literal["infrastructure", "cancelled", "budget", "incomplete"]


class Failure(Payload):
    """Why an attempt ended without a verdict. `signature` is the contract's class, null where it has none."""

    kind: FailureKind
    message: str
    phase: str | None = None
    signature: str | None = None
    code: str | None = None
    """Of the typed error, where it was one of ours."""
    is_final: bool = False
    """Another attempt would be of no use, whatever the job's policy says."""


class CloseInput(PlacedAttempt):
    """Persist what is there, end the box, settle. `agent` null: it never ran.

    `signatures` are the failure classes of the attempt numbers before this one, null for none. `step` is the
    last one that was begun, `agent` and `verifier` are its own; `unready` says why its agent did not start.
    """

    box_id: str | None = None
    harness: HarnessPlace = HarnessPlace()
    agent: AgentEnd | None = None
    verifier: VerifierEnd | None = None
    unready: str | None = None
    failure: Failure | None = None
    signatures: list[str | None] = []
    lost_host: str | None = None
    """Why the host of its boxes is given up, where it is."""
    unclosed: str | None = None
    """What the close failed with: the boxes are the reaper's, and no attempt may follow beside them."""


class Settled(Payload):
    """What the attempt came to. `retry_after_sec` null: so did the trial; else the next one follows then."""

    status: str
    reward: float | None = None
    retry_after_sec: float | None = None


PREPARE_TRIAL = Signature("prepare_trial", AttemptRef, Placement)
GIVE_BACK_ROOM = Signature("give_back_room", CapacityWaited, Nothing)
"""Release the room of an attempt whose provider had no capacity, and record that it waits."""
FIND_PLACE = Signature("find_place", AttemptRef, LeftPlace)
"""Where a trial's newest attempt number was placed, when it only remains to be closed."""
OPEN_BOX = Signature("open_box", PlacedAttempt, OpenedBox)
PREPARE_STEP = Signature("prepare_step", BoxedAttempt, StepReady)
"""Before the agent of a step: what earlier steps left hidden is removed, the step's own files and setup."""
RUN_AGENT = Signature("run_agent", BoxedAttempt, AgentEnd)
RUN_VERIFIER = Signature("run_verifier", VerifierInput, VerifierEnd)
REGRADE_TRIAL = Signature("regrade_trial", PlacedAttempt, VerifierEnd)
"""A trial without an agent: its verifier judges what that of another trial judged."""
CLOSE_TRIAL = Signature("close_trial", CloseInput, Settled)
SETTLE_TRIAL = Signature("settle_trial", CloseInput, Settled)
"""The last resort when closing itself fails for good: settle, and leave the box to the reaper."""


# --- a provider's breaker --------------------------------------------------------------------------

# Workflows that activities start, and what they tell them.
JOB_WORKFLOW = "JobWorkflow"
TRIAL_WORKFLOW = "TrialWorkflow"
SIGNAL_CANCEL = "cancel"
SIGNAL_HOST_LOST = "host_lost"
PROVIDER_WORKFLOW = "ProviderWorkflow"
SIGNAL_CREATE_ENDED = "create_ended"


class CreateReport(AttemptRef):
    """How a create went: `problem` null says that a probe's box was made."""

    provider: str
    problem: str | None = None


class ProviderReport(Payload):
    """The same as the provider's workflow hears it."""

    trial_id: str
    task: str
    at: datetime
    problem: str | None = None


class ProviderWindow(Payload):
    """Creates of a provider since then."""

    provider: str
    since: datetime


class GoodCreates(Payload):
    """How many boxes were made."""

    n: int


class HealthToWrite(Payload):
    """A provider's breaker, for dispatch to read."""

    provider: str
    breaker: Breaker


REPORT_CREATE = Signature("report_create", CreateReport, Nothing)
RELEASE_PROBE = Signature("release_probe", PlacedAttempt, Nothing)
"""Another trial may probe: this one's never came to say whether boxes are made."""
COUNT_GOOD_CREATES = Signature("count_good_creates", ProviderWindow, GoodCreates)
WRITE_HEALTH = Signature("write_health", HealthToWrite, Nothing)


# --- one job ---------------------------------------------------------------------------------------


class AcceptInput(Payload):
    """`job_id` names a job that the API accepted; else `request` is the body of POST /api/jobs as JSON."""

    job_id: str
    workflow_id: str
    owner: str | None = None
    request_json: str | None = None


class JobStart(Payload):
    """What the job's story needs to know, and no more."""

    job_id: str
    n_total_trials: int
    n_concurrent_trials: int
    is_cancelled: bool = False
    to_cancel: list[int] = []
    """Of a job that begins anew with its cancel: the trials that are under way, by their index."""
    is_paused: bool = False
    is_regrade: bool = False
    search: dict[str, str] = {}
    """See `Placement`."""


class JobRef(Payload):
    """One job."""

    job_id: str


class JobIndexes(JobRef):
    """Some trials of a job by their index."""

    indexes: list[int]


class Silent(Payload):
    """Of trials that did not signal: those that have `settled`, and the `lost`, whose workflow is closed
    although they have not (an operator terminated it)."""

    settled: list[int]
    lost: list[int]


class JobEnd(Payload):
    """What a job came to: the result that Temporal shows."""

    job_id: str
    status: str
    n_total_trials: int
    by_status: dict[str, int]
    mean_reward: float | None = None


ACCEPT_JOB = Signature("accept_job", AcceptInput, JobStart)
FIND_SILENT = Signature("find_silent", JobIndexes, Silent)
CANCEL_JOB = Signature("cancel_job", JobRef, Nothing)
CANCEL_UNSTARTED = Signature("cancel_unstarted", JobIndexes, Nothing)
FINISH_JOB = Signature("finish_job", JobRef, JobEnd)


# --- dataset imports -------------------------------------------------------------------------------


class ImportRef(Payload):
    """One dataset import."""

    import_id: str


class TaskToBuild(Payload):
    """One parsed task whose image is to be built."""

    version_id: str
    task_name: str
    import_id: str
    build_timeout_sec: float
    provider: str = ""
    """Which its builder was chosen for."""


class Builder(Payload):
    """Where a task is to be built, and for which provider; an empty queue: no host is known that could."""

    queue: str = ""
    provider: str = ""


class ParsedDataset(Payload):
    """What the archive held; `is_refused`: the whole corpus was refused.

    `queue` is that of the host that builds, of imports from before each task asked for its own.
    """

    version_id: str
    tasks: list[TaskToBuild]
    queue: str = ""
    is_refused: bool = False


class ImportEnd(Payload):
    """What the import came to."""

    import_id: str
    status: str
    n_ready: int = 0
    n_failed: int = 0


class ImportProblem(ImportRef):
    """Why an import failed as a whole."""

    message: str


FAIL_IMPORT = Signature("fail_import", ImportProblem, ImportEnd)
UNPACK_DATASET = Signature("unpack_dataset", ImportRef, ParsedDataset)
FIND_BUILDER = Signature("find_builder", TaskToBuild, Builder)
BUILD_TASK = Signature("build_task", TaskToBuild, Nothing)
FINISH_IMPORT = Signature("finish_import", ImportRef, ImportEnd)


# --- the reaper ------------------------------------------------------------------------------------

REAPER_WORKFLOW = "ReaperWorkflow"
REAPER_ID = "reaper"
"""Of its schedule; its runs are called that with their time."""


class ReapOrder(Payload):
    """`is_dry`: nothing is touched, only told."""

    is_dry: bool = False


class HostQueue(Payload):
    """A host that lives, and where its short work goes."""

    host_id: str
    queue: str


class LiveHosts(Payload):
    """Those that can be asked about their own boxes and disks."""

    hosts: list[HostQueue]


class ReapReport(Payload):
    """What was found and, unless it was dry, dealt with. `problems`: what could not be looked at or done.

    `n_by_kind` counts all, `leftovers` holds the first `REPORTED_MAX` of each part.
    """

    n_by_kind: dict[str, int] = {}
    leftovers: list[Leftover] = []
    problems: list[str] = []


REPORTED_MAX = 200
FIND_HOSTS = Signature("find_live_hosts", ReapOrder, LiveHosts)
REAP_HOST = Signature("reap_host", ReapOrder, ReapReport)
"""On a host's own queue: boxes, images and bundles are seen only there."""
REAP_SHARED = Signature("reap_shared", ReapOrder, ReapReport)


# --- archives --------------------------------------------------------------------------------------


class ArchiveRef(Payload):
    """A download to build once: of a `job` or a `trial`."""

    kind: Literal["job", "trial"]
    subject_id: str


BUILD_ARCHIVE = Signature("build_archive", ArchiveRef, Nothing)
