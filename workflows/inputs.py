"""Inputs and carried state of the workflows.

Apart from the stories, so that the sandbox passes these models through: making them anew for each
workflow run was most of a run's price.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict, Field

from activities import signatures as act
from activities.signatures import Payload, Placement
from domain.breaker import Breaker


class TrialInput(Payload):
    """One trial of a job. `job_workflow_id` is told when it is over.

    `ended_by`: the trial's first workflow was ended from outside; what it left is closed for this reason.
    The rest is what a continued run carries: its attempt number and turn, the failure classes of the
    attempt numbers before, and how long and how often it has waited for a provider.
    """

    job_id: str
    trial_id: str
    index: int
    job_workflow_id: str
    ended_by: str | None = None
    attempt_number: int = 1
    turn: int = 0
    signatures: list[str | None] = Field(default_factory=list[str | None])
    waited_sec: float = 0.0
    n_waits: int = 0


@dataclass
class Progress:
    """How far the attempt came: what closing it needs to know."""

    placement: Placement | None = None
    box: act.OpenedBox | None = None
    step: int | None = None
    unready: str | None = None
    agent: act.AgentEnd | None = None
    verifier: act.VerifierEnd | None = None


class Window(Payload):
    """What a continued run needs: indexes and counts only. `pause_order` is the newest word on pausing."""

    start: act.JobStart
    next_index: int = 0
    in_flight: list[int] = Field(default_factory=list[int])
    n_settled: int = 0
    is_cancelled: bool = False
    is_cancel_wanted: bool = False
    is_paused: bool = False
    pause_order: int = 0
    to_stop: list[int] = Field(default_factory=list[int])


class JobInput(Payload):
    """Either `job_id` (accepted by the API), or the body of `POST /api/jobs` without inline secrets and
    with `owner` (an email or user id; default: the installation's owner). `window`: a continued run."""

    model_config = ConfigDict(frozen=True, extra="allow")

    job_id: str | None = None
    owner: str | None = None
    window: Window | None = None


class ProviderInput(Payload):
    """A provider by its name; the rest is what a continued run carries."""

    provider: str
    breaker: Breaker = Breaker()
    reports: list[act.ProviderReport] = Field(default_factory=list[act.ProviderReport])


class ImportInput(Payload):
    """One import that the API accepted."""

    import_id: str
