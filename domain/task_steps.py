"""`[[steps]]`: what a multi-step task declares of each step, and what is refused of it (contract 6.8)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from domain.errors import TaskError
from domain.task_config import (
    AgentConfig,
    ArtifactConfig,
    HealthcheckConfig,
    StepConfig,
    TaskConfig,
    VerifierConfig,
)
from domain.task_env import EnvValue, env_values

__all__ = [
    "SEED_FILE",
    "SETUP_TIMEOUT_SEC",
    "MinReward",
    "TaskStep",
    "instruction_text",
    "refuse_step_declarations",
    "require_step_files",
    "resolve_steps",
    "step_instructions",
]

DEFAULT_AGENT_TIMEOUT_SEC = 3600.0
DEFAULT_VERIFIER_TIMEOUT_SEC = 600.0
SEED_FILE = "trajectory.json"
SETUP_TIMEOUT_SEC = 600.0
"""Of a step's `setup.sh`: no declaration bounds it."""
MAX_STEPS = 1000
"""A trial's workflow holds the story of each."""
_SESSION_KEY = "inherit_prior_session"

MinReward = float | dict[str, float]
"""What a step must score for the next one to follow: its primary reward, or each named one."""


class TaskStep(BaseModel):
    """One step, resolved: what is declared of it, else what the task declares, else the default."""

    model_config = ConfigDict(frozen=True)

    name: str
    instruction: str | None
    """None when only task.toml was read."""
    agent_timeout_sec: float
    verifier_timeout_sec: float
    verifier_env: Mapping[str, EnvValue] = Field(default_factory=dict[str, EnvValue])
    min_reward: MinReward | None = None
    healthcheck: HealthcheckConfig | None = None
    artifacts: tuple[ArtifactConfig, ...] = ()
    """The task's, then its own."""
    has_workdir: bool = False
    has_setup: bool = False
    has_solution: bool = False
    solution_folder: str = "solution"
    """Its own, else the task's."""

    @property
    def folder(self) -> str:
        """Where its files are in the task, and its outputs in a trial's folder."""
        return f"steps/{self.name}"


def refuse_step_declarations(config: TaskConfig) -> None:
    """Raise `TaskError` for what a multi-step task must not declare, naming the key."""
    if not config.steps:
        return
    if len(config.steps) > MAX_STEPS:
        raise TaskError(f"[[steps]]: {len(config.steps)} of them; at most {MAX_STEPS} are accepted")
    if config.verifier.mode() == "separate":
        raise TaskError(
            "[verifier].environment_mode: a multi-step task is verified in its agent's box, in shared mode"
        )
    if config.verifier.collect:
        raise TaskError("[[verifier.collect]]: a multi-step task cannot have collection hooks")
    for step in config.steps:
        _refuse_agent(step.name, step.agent)
        _refuse_verifier(step.name, step.verifier)
        for table in (step, step.agent):
            if (table.model_extra or {}).get(_SESSION_KEY):
                raise _refusal(step.name, _SESSION_KEY, "each step is a fresh conversation")


def _refuse_agent(name: str, agent: AgentConfig) -> None:
    if agent.user is not None:
        raise _refusal(name, "agent.user", "every step runs as the task's [agent].user")
    if agent.declared_policy() is not None:
        raise _refusal(name, "agent.network_mode", "all steps share the network of [environment]")


def _refuse_verifier(name: str, verifier: VerifierConfig) -> None:
    if verifier.user is not None:
        raise _refusal(name, "verifier.user", "a verifier runs as root")
    if verifier.environment is not None:
        raise _refusal(name, "verifier.environment", "every step is verified in the agent's box")
    if verifier.environment_mode is not None:
        raise _refusal(name, "verifier.environment_mode", "every step is verified in the agent's box")
    if verifier.declared_policy() is not None:
        raise _refusal(name, "verifier.network_mode", "all steps share the network of [environment]")
    if verifier.collect:
        raise _refusal(name, "verifier.collect", "a multi-step task cannot have collection hooks")


def _refusal(step: str, key: str, why: str) -> TaskError:
    return TaskError(f"[[steps]] {step!r}: {key} is not accepted of a step: {why}")


def require_step_files(config: TaskConfig, paths: Collection[str]) -> None:
    """Raise `TaskError` where `steps/` and `[[steps]]` disagree, or a file of a step is missing."""
    if "environment/docker-compose.yaml" in paths:
        raise TaskError("environment/docker-compose.yaml: a multi-step task runs in one container")
    declared = {step.name for step in config.steps}
    present = {path.split("/")[1] for path in paths if path.startswith("steps/") and path.count("/") > 1}
    for step in sorted(declared - present):
        raise TaskError(f"steps/{step}: declared in [[steps]], but the directory is missing")
    for step in sorted(present - declared):
        raise TaskError(f"steps/{step}: the directory is not declared in [[steps]]")
    for step in sorted(declared):
        if f"steps/{step}/instruction.md" not in paths:
            raise TaskError(f"steps/{step}/instruction.md: missing")
        if f"steps/{step}/tests/test.sh" not in paths and "tests/test.sh" not in paths:
            raise TaskError(f"steps/{step}/tests/test.sh: missing, and so is the shared tests/test.sh")
    _require_seed_of_first(config, paths)


def _require_seed_of_first(config: TaskConfig, paths: Collection[str]) -> None:
    first, *later = (step.name for step in config.steps)
    for place in (SEED_FILE, *(f"steps/{name}/{SEED_FILE}" for name in later)):
        if place in paths:
            raise TaskError(f"{place}: only the first step can be seeded: steps/{first}/{SEED_FILE}")


def step_instructions(paths: Iterable[str]) -> dict[str, str]:
    """Of a task's files, the instruction of each step by the step's name."""
    parts = [path.split("/") for path in paths]
    return {each[1]: "/".join(each) for each in parts if each[::2] == ["steps", "instruction.md"]}


def resolve_steps(
    config: TaskConfig, paths: Collection[str], instructions: Mapping[str, bytes]
) -> tuple[TaskStep, ...]:
    """The steps in order. `instructions` are the bytes of `instruction.md` by step."""
    return tuple(_resolve(config, step, paths, instructions.get(step.name)) for step in config.steps)


def _resolve(
    config: TaskConfig, step: StepConfig, paths: Collection[str], instruction: bytes | None
) -> TaskStep:
    folder = f"steps/{step.name}"
    agent_timeout_sec = step.agent.timeout_sec or config.agent.timeout_sec
    verifier_timeout_sec = step.verifier.timeout_sec or config.verifier.timeout_sec
    has_own_solution = f"{folder}/solution/solve.sh" in paths
    return TaskStep(
        name=step.name,
        instruction=instruction_text(instruction, f"{folder}/instruction.md"),
        agent_timeout_sec=agent_timeout_sec or DEFAULT_AGENT_TIMEOUT_SEC,
        verifier_timeout_sec=verifier_timeout_sec or DEFAULT_VERIFIER_TIMEOUT_SEC,
        verifier_env=env_values({**config.verifier.env, **step.verifier.env}, "steps.verifier.env"),
        min_reward=step.min_reward,
        healthcheck=step.healthcheck,
        artifacts=(*config.artifacts, *step.artifacts),
        has_workdir=any(path.startswith(f"{folder}/workdir/") for path in paths),
        has_setup=f"{folder}/workdir/setup.sh" in paths,
        has_solution=has_own_solution or "solution/solve.sh" in paths,
        solution_folder=f"{folder}/solution" if has_own_solution else "solution",
    )


def instruction_text(data: bytes | None, name: str) -> str | None:
    """An instruction as text; raises `TaskError` naming the file."""
    if data is None:
        return None
    if b"\0" in data:
        raise TaskError(f"{name}: holds a NUL character (byte {data.index(0)})")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise TaskError(f"{name}: not UTF-8 (byte {error.start})") from None
