"""An arm: an agent with a model, and everything else that makes it a system of its own (contract §6.1)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, cast

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from domain.errors import ApiError
from domain.harness_config import refuse_config_keys
from domain.models import SCRIPTED, route_of
from domain.requests import RequestModel, sorted_keys
from domain.rosters import ROSTERS, Roster, registered_roster
from domain.vocabulary import REASONING_EFFORTS

Text = Annotated[str, Field(min_length=1, max_length=255)]

# One published version and never a range or a tag: what npm takes as exact.
_EXACT_VERSION = re.compile(r"\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?:\+[0-9A-Za-z.-]+)?")


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
    """An arm as a job stores and echoes it. `registration` is the revision of a registered agent that the
    job runs, whatever becomes of the agent's name meanwhile."""

    model_config = ConfigDict(frozen=True)

    name: str
    model_name: str | None = None
    version: str | None = None
    reasoning_effort: str | None = None
    kwargs: dict[str, Any] | None = None
    preset: str | None = None
    skills: tuple[str, ...] = ()
    registration: str | None = None

    @property
    def identity(self) -> bytes:
        """Equal for arms that are the same system."""
        return to_json(sorted_keys(self.model_dump(mode="json")))

    @property
    def spends(self) -> bool:
        """Whether it calls a model: `oracle` and `nop` do not."""
        roster = ROSTERS.get(self.name)
        return roster is None or roster.needs_model

    def wire(self) -> dict[str, Any]:
        """AgentArm of contract §3.6; locks stay null until a trial resolves skills."""
        return {**self.model_dump(mode="json", exclude={"registration"}), "skill_locks": None}


def resolve_arms(
    agents: Sequence[AgentArmInput],
    *,
    registrations: Mapping[str, str] | None = None,
    upstreams: Collection[str] = (),
) -> tuple[AgentArm, ...]:
    """The arms of a job, identical ones once, in the order asked.

    `registrations` maps the caller's own agents to their present revision; models under a name of
    `upstreams` (`scripted` where it is enabled, and the operator's own) run on every harness. Raises
    `agent_not_found` for an unknown agent, `feature_unsupported` for one that cannot run here, and the
    refusals of what an agent or its model does not take.
    """
    arms: dict[bytes, AgentArm] = {}
    for position, agent in enumerate(agents):
        resolver = _Resolver(agent, f"agents[{position}]", registrations or {}, upstreams)
        arm = resolver.resolve()
        arms.setdefault(arm.identity, arm)
    return tuple(arms.values())


class _Resolver:
    """One entry of `agents`, judged against the roster of its agent."""

    def __init__(
        self,
        agent: AgentArmInput,
        param: str,
        registrations: Mapping[str, str],
        upstreams: Collection[str],
    ) -> None:
        self._agent = agent
        self._param = param
        self._upstreams = upstreams
        self._registration = None if agent.name in ROSTERS else registrations.get(agent.name)
        self._roster = self._find_roster()

    def resolve(self) -> AgentArm:
        agent = self._agent
        efforts, default_effort = self._efforts_of_model()
        self._refuse_effort(efforts)
        self._refuse_settings()
        return AgentArm(
            name=agent.name,
            model_name=agent.model_name,
            version=agent.version,
            reasoning_effort=agent.reasoning_effort or default_effort,
            # An empty object asks for nothing: the same arm as none.
            kwargs=agent.kwargs or None,
            preset=agent.preset,
            registration=self._registration,
        )

    def _find_roster(self) -> Roster:
        name = self._agent.name
        if self._registration is not None:
            return registered_roster(name)
        roster = ROSTERS.get(name)
        if roster is None:
            raise self._refusal("agent_not_found", "name", f"no agent {name}")
        if not roster.is_runnable:
            details = {"agent": name, "reason": roster.reason}
            message = f"{name} cannot run here: {roster.reason}"
            raise self._refusal("feature_unsupported", "name", message, details)
        return roster

    def _efforts_of_model(self) -> tuple[tuple[str, ...], str | None]:
        """The efforts that the model takes on this harness, and its default."""
        roster, model = self._roster, self._agent.model_name
        if model is None:
            if roster.needs_model:
                raise self._refusal("invalid_input", "model_name", f"{roster.name} must be given a model")
            return (), None
        option = roster.option(model)
        if option is not None:
            return option.reasoning_efforts, option.default_reasoning_effort
        if not roster.needs_model:
            return (), None
        if not self._is_routed_off_roster(model):
            raise self._unknown_model(model)
        # What such a model does with no effort is its own affair: nothing is asked of it unasked.
        return roster.efforts, None

    def _is_routed_off_roster(self, model: str) -> bool:
        route = route_of(model, self._upstreams)
        if route is None or (route.provider == SCRIPTED and SCRIPTED not in self._upstreams):
            return False
        return self._roster.takes_any_model or route.provider in self._upstreams

    def _unknown_model(self, model: str) -> ApiError:
        name = self._roster.name
        if self._roster.takes_any_model:
            return self._refusal("invalid_input", "model_name", f"nobody is known to serve {model}")
        route = route_of(model)
        if route is not None and route.provider == SCRIPTED:
            message = f"{model}: this server has no scripted models (EVOLVE_SCRIPTED_UPSTREAM is not set)"
            raise self._refusal("invalid_input", "model_name", message)
        near = self._roster.near_models(model)
        hint = f"; near it: {', '.join(near)}" if near else f"; /api/meta lists what {name} runs"
        message = f"{name} does not run {model}{hint}"
        return self._refusal("invalid_input", "model_name", message, {"near": near})

    def _refuse_effort(self, accepted: tuple[str, ...]) -> None:
        effort, subject = self._agent.reasoning_effort, self._agent.model_name or self._agent.name
        if effort is None:
            return
        if effort not in REASONING_EFFORTS:
            message = f"{effort} is not one of {', '.join(REASONING_EFFORTS)}"
            raise self._refusal("invalid_input", "reasoning_effort", message)
        if effort not in accepted:
            takes = f"only {', '.join(accepted)}" if accepted else "no reasoning effort"
            message = f"{subject} on {self._agent.name} takes {takes}"
            details = {"accepted": list(accepted)}
            raise self._refusal("agent_effort_unsupported", "reasoning_effort", message, details)

    def _refuse_settings(self) -> None:
        agent, roster = self._agent, self._roster
        for key in agent.kwargs or {}:
            if key != "config":
                message = "unknown; only `config` is"
                raise self._refusal("agent_kwarg_unsupported", f"kwargs.{key}", message)
        if agent.kwargs:
            self._refuse_config(agent.kwargs["config"])
        if agent.preset is not None and agent.preset not in roster.presets:
            message = f"{agent.name} cannot guarantee {agent.preset}"
            details = {"accepted": list(roster.presets)}
            raise self._refusal("agent_preset_unsupported", "preset", message, details)
        if agent.version is not None:
            self._refuse_version(agent.version)
        if agent.skills:
            raise self._refusal("feature_unsupported", "skills", "not in this release")

    def _refuse_config(self, config: Any) -> None:
        if not self._roster.supports_config:
            message = f"{self._agent.name} has no settings"
            raise self._refusal("agent_config_unsupported", "kwargs.config", message)
        if not isinstance(config, dict):
            raise self._refusal("invalid_input", "kwargs.config", "not an object of settings")
        settings = cast("dict[str, Any]", config)
        refuse_config_keys(self._agent.name, settings, f"{self._param}.kwargs.config")

    def _refuse_version(self, version: str) -> None:
        if not self._roster.is_version_pinnable:
            raise self._refusal("invalid_input", "version", f"{self._agent.name} has no versions to pin")
        if _EXACT_VERSION.fullmatch(version) is None:
            message = f"{version} is not one exact version, such as 1.2.3"
            raise self._refusal("invalid_input", "version", message)

    def _refusal(
        self, code: str, field: str, message: str, details: dict[str, Any] | None = None
    ) -> ApiError:
        path = f"{self._param}.{field}"
        return ApiError(code, f"{path}: {message}.", param=path, details=details)
