"""A task as the runtime sees it: everything declared, resolved to typed values, with no file read.

`parse_task` takes the text of `task.toml` and the names of the task's files. What is malformed, or refused
for good by contract section 6.8, raises `TaskError` naming the key or file; what this release or a
provider cannot honour is `domain.support`'s to say.

The instruction is handed to the agent unchanged (Harbor strips leading "canary" comments; the documents
of this platform promise the file as it is).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import PurePosixPath

from pydantic import BaseModel, ConfigDict, Field

from domain.errors import TaskError
from domain.steps import RewardStrategy
from domain.task_config import (
    ArtifactConfig,
    CollectConfig,
    EnvironmentConfig,
    HealthcheckConfig,
    McpServerConfig,
    NetworkPolicy,
    TaskConfig,
    read_task_config,
)
from domain.task_env import EnvValue, env_values, resolve_env
from domain.task_steps import (
    DEFAULT_AGENT_TIMEOUT_SEC,
    DEFAULT_VERIFIER_TIMEOUT_SEC,
    SEED_FILE,
    TaskStep,
    instruction_text,
    refuse_step_declarations,
    require_step_files,
    resolve_steps,
    step_instructions,
)
from domain.vocabulary import VerifierEnvironmentMode

__all__ = [
    "DEFAULT_AGENT_TIMEOUT_SEC",
    "DEFAULT_VERIFIER_TIMEOUT_SEC",
    "UNCARRIED_PATHS",
    "EnvValue",
    "Task",
    "TaskFiles",
    "TaskNote",
    "is_pinned_image",
    "parse_task",
    "resolve_env",
]

UNCARRIED_PATHS = ("/tests", "/logs/verifier", "/.evolve", "/proc", "/sys", "/dev")
"""Never carried from an agent's box into a verifier's, whatever `artifacts` names."""

_HEREDOC = re.compile(r"<<-?[\"']?(\w+)")


class TaskFiles(BaseModel):
    """What parsing may look at: file names relative to the task, and the texts of some files.

    `paths` None means that only task.toml is known (preflight); file rules are then left out.
    """

    model_config = ConfigDict(frozen=True)

    paths: frozenset[str] | None = None
    instruction: bytes | None = None
    dockerfile: bytes | None = None
    tests_dockerfile: bytes | None = None
    step_instructions: Mapping[str, bytes] = {}
    """`steps/<name>/instruction.md` by name."""

    @classmethod
    def of(cls, paths: Collection[str], content: Callable[[str], bytes]) -> TaskFiles:
        """Of a task whose files are known; `content` is asked for the few that parsing looks into."""

        def text_of(path: str) -> bytes | None:
            return content(path) if path in paths else None

        return cls(
            paths=frozenset(paths),
            instruction=text_of("instruction.md"),
            dockerfile=text_of("environment/Dockerfile"),
            tests_dockerfile=text_of("tests/Dockerfile"),
            step_instructions={step: content(path) for step, path in step_instructions(paths).items()},
        )


class TaskNote(BaseModel):
    """TaskNote of contract 3.3."""

    model_config = ConfigDict(frozen=True)

    code: str
    message: str


_TESTS_DOCKERFILE_NOT_BUILT = TaskNote(
    code="tests_dockerfile_not_built",
    message="tests/Dockerfile is built for a separate verifier without a docker_image only; "
    "what it would install must be in the task's image",
)


class Task(BaseModel):
    """One task, resolved. Sizes in MB, times in seconds; None means the provider's or image's own."""

    model_config = ConfigDict(frozen=True)

    name: str
    """The directory's name: the task's identity in its dataset."""
    declared_name: str | None
    """`[task].name`, for manifest matching."""
    description: str
    schema_version: str
    instruction: str | None
    """None for a multi-step task, and when only task.toml was read."""
    steps: tuple[TaskStep, ...] = ()
    """Of a multi-step task, in order."""
    reward_strategy: RewardStrategy = "mean"

    agent_timeout_sec: float
    """Of all steps together, as the verifiers'."""
    verifier_timeout_sec: float
    build_timeout_sec: float
    agent_user: str | None
    """None is the image's USER."""

    network: NetworkPolicy
    agent_network: NetworkPolicy
    verifier_network: NetworkPolicy
    verifier_mode: VerifierEnvironmentMode
    verifier_environment: EnvironmentConfig | None
    verifier_environment_env: Mapping[str, EnvValue] = Field(default_factory=dict[str, EnvValue])
    collect: tuple[CollectConfig, ...]

    os: str
    docker_image: str | None
    workdir: str | None
    cpus: float | None
    memory_mb: int | None
    storage_mb: int | None
    gpus: int
    gpu_types: tuple[str, ...] | None
    tpu: str | None

    env: Mapping[str, EnvValue] = Field(default_factory=dict[str, EnvValue])
    verifier_env: Mapping[str, EnvValue] = Field(default_factory=dict[str, EnvValue])
    solution_env: Mapping[str, EnvValue] = Field(default_factory=dict[str, EnvValue])

    artifacts: tuple[ArtifactConfig, ...]
    healthcheck: HealthcheckConfig | None
    mcp_servers: tuple[McpServerConfig, ...]
    skills_dir: str | None

    has_dockerfile: bool
    has_compose: bool
    has_solution: bool
    has_tests_dockerfile: bool
    has_pre_artifacts: bool
    has_trajectory: bool
    has_run_instructions: bool
    """Whether environment/Dockerfile holds a RUN."""
    has_tests_run_instructions: bool = False
    """Whether tests/Dockerfile does."""

    tests_folders: tuple[str, ...] = ("tests",)
    """The tests are these folders of the task, merged; a later one's files win."""
    solution_folder: str = "solution"
    seed_path: str = SEED_FILE

    unknown_keys: tuple[str, ...]
    """Keys of task.toml that no schema knows: kept by nobody, reported."""

    def at_step(self, position: int | None) -> Task:
        """The task as an agent and a verifier meet it in one of its steps; None is the task as it is."""
        if position is None:
            return self
        step = self.steps[position]
        return self.model_copy(
            update={
                "instruction": step.instruction,
                "agent_timeout_sec": step.agent_timeout_sec,
                "verifier_timeout_sec": step.verifier_timeout_sec,
                "verifier_env": step.verifier_env,
                "artifacts": step.artifacts,
                "has_solution": step.has_solution,
                "has_trajectory": self.has_trajectory and position == 0,
                "tests_folders": ("tests", f"{step.folder}/tests"),
                "solution_folder": step.solution_folder,
                "seed_path": f"{step.folder}/{SEED_FILE}",
            }
        )

    @property
    def notes(self) -> tuple[TaskNote, ...]:
        """Import-time notes of contract 4.3; none is a refusal."""
        own_image = self.verifier_environment is not None and self.verifier_environment.docker_image
        if self.has_tests_dockerfile and (self.verifier_mode == "shared" or own_image):
            return (_TESTS_DOCKERFILE_NOT_BUILT,)
        return ()

    @property
    def env_literals(self) -> dict[str, str]:
        """What the image's own start sees of `[environment.env]`."""
        return {key: value.literal for key, value in self.env.items() if value.literal is not None}


def parse_task(name: str, task_toml: str | bytes, files: TaskFiles) -> Task:
    """The task of directory `name`. Raises `TaskError` naming the key or file at fault."""
    config = read_task_config(task_toml)
    _refuse_for_good(config)
    refuse_step_declarations(config)
    paths = files.paths
    if paths is not None:
        _require_files(config, paths)
    return _resolve(name, config, files)


def _refuse_for_good(config: TaskConfig) -> None:
    """Declarations that contract section 6.8 refuses in every release."""
    verifier = config.verifier
    if verifier.user not in (None, "root", "0"):
        raise TaskError(
            f"[verifier].user: {verifier.user!r}: the verifier runs as root, no other user is accepted"
        )
    _require_pinned("environment", config.environment.docker_image)
    if verifier.environment is not None:
        _require_pinned("verifier.environment", verifier.environment.docker_image)
    _refuse_artifacts(config)
    declared = verifier.declared_policy()
    of_agent = config.agent.declared_policy() or config.environment.policy()
    if verifier.mode() == "shared" and declared not in (None, of_agent):
        raise TaskError(
            "[verifier].network_mode: a shared verifier runs in the agent's box and shares its network "
            f"({of_agent.mode}); declare the same, or nothing"
        )


def _require_pinned(table: str, image: str | None) -> None:
    if image and not is_pinned_image(image):
        raise TaskError(
            f"[{table}].docker_image: {image!r} is not pinned: name a tag other than latest, or a digest"
        )


def _refuse_artifacts(config: TaskConfig) -> None:
    """A whole root cannot be carried from one box into another."""
    if config.verifier.mode() == "separate":
        for artifact in config.artifacts:
            if PurePosixPath(artifact.source) == PurePosixPath("/"):
                raise TaskError("artifacts: '/' is a whole system, not the agent's work: name what it makes")


def is_pinned_image(reference: str) -> bool:
    """Whether an image reference carries a digest, or a tag that is not `latest`."""
    if "@sha256:" in reference:
        return True
    _, colon, tag = reference.rsplit("/", 1)[-1].partition(":")
    return bool(colon) and tag not in ("", "latest")


def _require_files(config: TaskConfig, paths: Collection[str]) -> None:
    has_source = "environment/Dockerfile" in paths or "environment/docker-compose.yaml" in paths
    if not has_source and not config.environment.docker_image:
        raise TaskError(
            "environment: needs environment/Dockerfile, environment/docker-compose.yaml or "
            "[environment].docker_image"
        )
    if config.steps:
        require_step_files(config, paths)
        return
    if any(path.startswith("steps/") for path in paths):
        raise TaskError("steps/: the directory exists, but task.toml declares no [[steps]]")
    for required in ("instruction.md", "tests/test.sh"):
        if required not in paths:
            raise TaskError(f"{required}: missing")


def _resolve(name: str, config: TaskConfig, files: TaskFiles) -> Task:
    environment, verifier = config.environment, config.verifier
    paths = files.paths or frozenset[str]()
    network = environment.policy()
    agent_network = config.agent.declared_policy() or network
    dockerfile = _dockerfile_instructions(files.dockerfile)
    _refuse_groups(dockerfile)
    tests_dockerfile = _dockerfile_instructions(files.tests_dockerfile)
    steps = resolve_steps(config, paths, files.step_instructions)
    return Task(
        name=name,
        declared_name=config.task.name if config.task else None,
        description=config.task.description if config.task else "",
        schema_version=config.schema_version,
        instruction=None if steps else instruction_text(files.instruction, "instruction.md"),
        steps=steps,
        reward_strategy=config.multi_step_reward_strategy or "mean",
        agent_timeout_sec=sum(step.agent_timeout_sec for step in steps)
        or config.agent.timeout_sec
        or DEFAULT_AGENT_TIMEOUT_SEC,
        verifier_timeout_sec=sum(step.verifier_timeout_sec for step in steps)
        or verifier.timeout_sec
        or DEFAULT_VERIFIER_TIMEOUT_SEC,
        build_timeout_sec=environment.build_timeout_sec,
        agent_user=config.agent.user,
        network=network,
        agent_network=agent_network,
        verifier_network=_verifier_network(config, agent_network),
        verifier_mode=verifier.mode(),
        verifier_environment=verifier.environment,
        verifier_environment_env=env_values(_verifiers_env(config), "verifier.environment.env"),
        collect=verifier.collect,
        os=environment.os,
        docker_image=environment.docker_image or None,
        workdir=environment.workdir,
        cpus=environment.cpus,
        memory_mb=environment.memory_mb,
        storage_mb=environment.storage_mb,
        gpus=environment.gpus or 0,
        gpu_types=environment.gpu_types or None,
        tpu=environment.tpu.type if environment.tpu else None,
        env=env_values(environment.env, "environment.env"),
        verifier_env=env_values(verifier.env, "verifier.env"),
        solution_env=env_values(config.solution.env, "solution.env"),
        artifacts=config.artifacts,
        healthcheck=environment.healthcheck,
        mcp_servers=environment.mcp_servers,
        skills_dir=environment.skills_dir,
        has_dockerfile="environment/Dockerfile" in paths,
        has_compose="environment/docker-compose.yaml" in paths,
        has_solution=all(step.has_solution for step in steps) if steps else "solution/solve.sh" in paths,
        has_tests_dockerfile="tests/Dockerfile" in paths,
        has_pre_artifacts="pre_artifacts.sh" in paths,
        has_trajectory=(f"{steps[0].folder}/{SEED_FILE}" if steps else SEED_FILE) in paths,
        has_run_instructions=any(keyword == "RUN" for keyword, _ in dockerfile),
        has_tests_run_instructions=any(keyword == "RUN" for keyword, _ in tests_dockerfile),
        unknown_keys=config.unknown_keys(),
    )


def _verifiers_env(config: TaskConfig) -> Mapping[str, str]:
    return config.verifier.environment.env if config.verifier.environment else {}


def _verifier_network(config: TaskConfig, agent_network: NetworkPolicy) -> NetworkPolicy:
    """Contract section 6.8: shared is the agent's; separate is its own environment's, overridable."""
    if config.verifier.mode() == "shared":
        return agent_network
    own = config.verifier.environment or config.environment
    return config.verifier.declared_policy() or own.policy()


def _dockerfile_instructions(data: bytes | None) -> list[tuple[str, str]]:
    """(KEYWORD, arguments) of each instruction, continuation lines joined, here-documents skipped."""
    instructions: list[tuple[str, str]] = []
    text_lines = (data or b"").decode(errors="replace").splitlines()
    lines = iter([line.strip() for line in text_lines if not line.lstrip().startswith("#")])
    for text in lines:
        while text.endswith("\\"):
            text = text[:-1] + " " + next(lines, "")
        keyword, _, arguments = text.partition(" ")
        if not keyword:
            continue
        for marker in _HEREDOC.findall(arguments):
            while next(lines, marker) != marker:
                pass
        instructions.append((keyword.upper(), arguments.strip()))
    return instructions


def _refuse_groups(dockerfile: Sequence[tuple[str, str]]) -> None:
    """Contract section 6.8 refuses `USER name:group`."""
    for keyword, arguments in dockerfile:
        if keyword == "USER" and ":" in arguments:
            raise TaskError(f"environment/Dockerfile: USER {arguments}: a group is not accepted")
