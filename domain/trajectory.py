"""ATIF v1.7, Harbor's format of an agent's trajectory (contract 8.2): what a trial folder keeps of a run.

What is unknown is left out of the document, never zero. Step ids count from 1; a result names a call of
its own step; `trajectory_id`s of embedded subagents are unique in the document.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = "ATIF-v1.7"

Source = Literal["system", "user", "agent"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TrajectoryAgent(_Part):
    """Who ran. `version` is a required word of the format: `unknown` where nobody told it."""

    name: str
    version: str = "unknown"
    model_name: str | None = None
    extra: dict[str, Any] | None = None


class ToolCall(_Part):
    """One call of a step."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class SubagentRef(_Part):
    """Names an embedded trajectory of the same document."""

    trajectory_id: str


class ObservationResult(_Part):
    """What a call gave back; without `source_call_id` what the environment said unasked."""

    source_call_id: str | None = None
    content: str | None = None
    subagent_trajectory_ref: tuple[SubagentRef, ...] | None = None
    extra: dict[str, Any] | None = None


class Observation(_Part):
    """The results of a step's calls."""

    results: tuple[ObservationResult, ...]


class Metrics(_Part):
    """What the harness said of one model call. Cached tokens are among the prompt's."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class FinalMetrics(_Part):
    """What the gateway measured of the whole run; null where it measured nothing."""

    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None


class Step(_Part):
    """One turn. Only an agent's has calls, reasoning and metrics."""

    step_id: int
    source: Source
    message: str
    timestamp: str | None = None
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    extra: dict[str, Any] | None = None


class Trajectory(_Part):
    """A run, with those of its subagents."""

    schema_version: Literal["ATIF-v1.7"] = SCHEMA_VERSION
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: TrajectoryAgent
    steps: tuple[Step, ...]
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    subagent_trajectories: tuple[Trajectory, ...] | None = None
    extra: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """The JSON object; what is null is left out."""
        return self.model_dump(mode="json", exclude_none=True)
