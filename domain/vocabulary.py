"""The state words of the wire (contract §4.1), each with the members that end it.

Words that the server stores and moves through are `StrEnum`s; words that only travel are `Literal`s.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Literal


class JobStatus(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    CANCELLING = "CANCELLING"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    """Reserved: nothing sets it. A job whose trials all fail is COMPLETED."""

    @property
    def is_terminal(self) -> bool:
        return self in JOB_TERMINAL


class TrialStatus(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SCORING = "SCORING"
    SCORED = "SCORED"
    SCORING_ERROR = "SCORING_ERROR"
    INFRASTRUCTURE_ERROR = "INFRASTRUCTURE_ERROR"
    BUDGET = "BUDGET"
    INDETERMINATE = "INDETERMINATE"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        return self in TRIAL_TERMINAL


class AttemptPhase(StrEnum):
    PREPARE = "prepare"
    BUILD = "build"
    BOOT = "boot"
    INSTALL = "install"
    AGENT = "agent"
    VERIFY = "verify"
    PERSIST = "persist"


class ImportStatus(StrEnum):
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        return self in IMPORT_TERMINAL


class DatasetVersionState(StrEnum):
    DRAFT = "DRAFT"
    RECEIVING = "RECEIVING"
    IMPORTING = "IMPORTING"
    BUILDING = "BUILDING"
    READY = "READY"
    FAILED = "FAILED"
    ARCHIVED = "ARCHIVED"

    @property
    def is_terminal(self) -> bool:
        return self in DATASET_VERSION_TERMINAL


class TaskBuildState(StrEnum):
    """`PENDING` never travels: the build route answers `task_not_found` until the build settles."""

    PENDING = "PENDING"
    READY = "READY"
    FAILED = "FAILED"


class AnalysisStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class DatasetImportPhase(StrEnum):
    EXTRACTING = "extracting"
    PARSING = "parsing"
    BUILDING = "building"
    COPYING = "copying"
    VERIFYING = "verifying"


class JobImportPhase(StrEnum):
    FETCHING = "fetching"
    EXTRACTING = "extracting"
    VALIDATING = "validating"
    INGESTING = "ingesting"


class TaskBuildStep(StrEnum):
    PARSE = "parse"
    IMAGE_BUILD = "image-build"
    IMAGE_CONFIG = "image-config"
    SKILLS_VERIFY = "skills-verify"
    COMPOSE_RESOLVE = "compose-resolve"
    IMAGE_MIRROR = "image-mirror"
    STORE = "store"


class ExceptionType(StrEnum):
    """`exception_info.exception_type` (contract §4.2); uploaded trials keep any other name verbatim."""

    SCORING = "ScoringError"
    INFRASTRUCTURE = "InfrastructureError"
    USAGE_LIMIT = "ApiUsageLimitError"
    CANCELLED = "CancelledError"
    INCOMPLETE = "IncompleteTrialError"


class SandboxProvider(StrEnum):
    """Where trials run. `docker` and `local` are ours, beside the hosted product's three."""

    DOCKER = "docker"
    LOCAL = "local"
    E2B = "e2b"
    DAYTONA = "daytona"
    MODAL = "modal"


class SpendSource(StrEnum):
    MEASURED = "measured"
    MEASURED_PROVISIONAL = "measured_provisional"
    ASSUMED_CAP = "assumed_cap"


class JobVisibility(StrEnum):
    PRIVATE = "PRIVATE"
    LINK = "LINK"


class ImportWarningCode(StrEnum):
    NO_SOLUTIONS_ARCHIVED = "no_solutions_archived"
    PARTIAL_SOLUTIONS_ARCHIVED = "partial_solutions_archived"
    TASKS_FAILED_TO_BUILD = "tasks_failed_to_build"
    TESTS_DOCKERFILE_NOT_BUILT = "tests_dockerfile_not_built"


JobViewer = Literal["creator", "member", "shared", "link"]
SourceAction = Literal["resume", "retry", "regrade"]
JobListScope = Literal["my", "shared", "org"]
JobListKind = Literal["job", "check", "all"]
OrgRole = Literal["owner", "member"]
EffortSupport = Literal["level", "binary", "none"]
VerifierEnvironmentMode = Literal["shared", "separate"]
InfraFailureSignature = Literal[
    "sandbox_death", "provider_create_failure", "stream_disconnect", "exec_chdir_failure"
]
TraceStream = Literal["verifier", "trace-stdout", "trace-stderr", "trace-atif", "trajectory", "agent-home"]

NETWORK_MODES: tuple[str, ...] = ("no-network", "allowlist", "public")
REASONING_EFFORTS: tuple[str, ...] = (
    "off",
    "minimal",
    "low",
    "medium",
    "high",
    "xhigh",
    "max",
    "thinking",
)
BINARY_EFFORTS: tuple[str, ...] = ("off", "minimal", "medium", "thinking")
AGENT_PRESETS: tuple[str, ...] = ("no-internet", "pinned-context")

JOB_TERMINAL = frozenset({JobStatus.COMPLETED, JobStatus.CANCELLED, JobStatus.FAILED})
TRIAL_LIVE = frozenset({TrialStatus.QUEUED, TrialStatus.RUNNING, TrialStatus.SCORING})
TRIAL_TERMINAL = frozenset(TrialStatus) - TRIAL_LIVE
IMPORT_TERMINAL = frozenset({ImportStatus.COMPLETED, ImportStatus.FAILED})
DATASET_VERSION_TERMINAL = frozenset(
    {DatasetVersionState.READY, DatasetVersionState.FAILED, DatasetVersionState.ARCHIVED}
)
ANALYSIS_TERMINAL = frozenset({AnalysisStatus.COMPLETED, AnalysisStatus.FAILED})
CHECK_STATUSES: tuple[str, ...] = ("queued", "running", "completed")

# What `/api/meta` publishes under `statuses`: every value in its order, and those that end it.
STATUS_VOCABULARIES: Mapping[str, tuple[tuple[str, ...], frozenset[str]]] = MappingProxyType(
    {
        "job": (tuple(JobStatus), JOB_TERMINAL),
        "trial": (tuple(TrialStatus), TRIAL_TERMINAL),
        "analysis": (tuple(AnalysisStatus), ANALYSIS_TERMINAL),
        "check": (CHECK_STATUSES, frozenset({"completed"})),
        "import": (tuple(ImportStatus), IMPORT_TERMINAL),
        "dataset_version": (tuple(DatasetVersionState), DATASET_VERSION_TERMINAL),
    }
)
