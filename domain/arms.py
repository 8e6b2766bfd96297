"""An arm: an agent with a model, and everything else that makes it a system of its own (contract §6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from domain.errors import ApiError
from domain.requests import RequestModel, sorted_keys
from domain.rosters import ROSTERS, Roster
from domain.vocabulary import REASONING_EFFORTS

Text = Annotated[str, Field(min_length=1, max_length=255)]


class AgentArmInput(RequestModel):
    """One entry of `agents`. `model_name` may be null or absent for agents that call no model."""

    name: Text
    model_name: Text | None = None
    version: Text | None = None
    reasoning_effort: Text | None = None
    kwargs: dict[str, Any] | None = None
    preset: Text | None = None
    skills: list[Text] | None = None


class AgentArm(BaseModel):
    """An arm as a job stores and echoes it."""

    model_config = ConfigDict(frozen=True)

    name: str
    model_name: str | None = None
    version: str | None = None
    reasoning_effort: str | None = None
    kwargs: dict[str, Any] | None = None
    preset: str | None = None
    skills: tuple[str, ...] = ()

    @property
    def identity(self) -> bytes:
        """Equal for arms that are the same system."""
        return to_json(sorted_keys(self.model_dump(mode="json")))

    def wire(self) -> dict[str, Any]:
        """AgentArm of contract §3.6; locks stay null until a trial resolves skills."""
        return {**self.model_dump(mode="json"), "skill_locks": None}

    def evals_key(self, dataset: str) -> str:
        """`agent[__model][__effort]__dataset`: the dataset is always the last segment (contract §6.4)."""
        parts = (self.name, self.model_name, self.reasoning_effort, dataset)
        return "__".join(part for part in parts if part is not None)


def resolve_arms(agents: Sequence[AgentArmInput]) -> tuple[AgentArm, ...]:
    """The arms of a job, identical ones once, in the order asked.

    Raises `agent_not_found` for an unknown agent, `feature_unsupported` for one that this release does
    not run, and the refusals of what an agent does not take.
    """
    arms: dict[bytes, AgentArm] = {}
    for position, agent in enumerate(agents):
        arm = _resolve_arm(agent, f"agents[{position}]")
        arms.setdefault(arm.identity, arm)
    return tuple(arms.values())


def _resolve_arm(agent: AgentArmInput, param: str) -> AgentArm:
    roster = ROSTERS.get(agent.name)
    if roster is None:
        raise ApiError("agent_not_found", f"{param}.name: no agent {agent.name}.", param=f"{param}.name")
    if not roster.is_runnable:
        raise ApiError(
            "feature_unsupported",
            f"{param}.name: {agent.name} cannot run here: {roster.reason}.",
            param=f"{param}.name",
            details={"agent": agent.name, "reason": roster.reason},
        )
    if roster.needs_model and agent.model_name is None:
        message = f"{param}.model_name: {agent.name} must be given a model."
        raise ApiError("invalid_input", message, param=f"{param}.model_name")
    _refuse_effort(agent, roster, param)
    _refuse_settings(agent, roster, param)
    return AgentArm(name=agent.name, model_name=agent.model_name)


def _refuse_effort(agent: AgentArmInput, roster: Roster, param: str) -> None:
    effort = agent.reasoning_effort
    if effort is None:
        return
    path = f"{param}.reasoning_effort"
    if effort not in REASONING_EFFORTS:
        message = f"{path}: {effort} is not one of {', '.join(REASONING_EFFORTS)}."
        raise ApiError("invalid_input", message, param=path)
    if roster.effort_support == "none":
        raise ApiError(
            "agent_effort_unsupported",
            f"{path}: {agent.name} takes no reasoning effort.",
            param=path,
            details={"accepted": []},
        )


def _refuse_settings(agent: AgentArmInput, roster: Roster, param: str) -> None:
    for key in agent.kwargs or {}:
        if key != "config":
            path = f"{param}.kwargs.{key}"
            raise ApiError("agent_kwarg_unsupported", f"{path}: unknown; only `config` is.", param=path)
    if agent.kwargs and not roster.supports_config:
        path = f"{param}.kwargs.config"
        raise ApiError("agent_config_unsupported", f"{path}: {agent.name} has no settings.", param=path)
    if agent.preset is not None and agent.preset not in roster.presets:
        path = f"{param}.preset"
        message = f"{path}: {agent.name} cannot guarantee {agent.preset}."
        raise ApiError("agent_preset_unsupported", message, param=path)
    if agent.version is not None and not roster.is_version_pinnable:
        path = f"{param}.version"
        raise ApiError("invalid_input", f"{path}: {agent.name} has no versions to pin.", param=path)
    if agent.skills:
        path = f"{param}.skills"
        raise ApiError("feature_unsupported", f"{path}: not in this release.", param=path)
