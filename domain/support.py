"""Which provider can run a task as declared: honoured, or refused by name (contract 3.3, 6.8).

Two tables. `NOT_YET` lists what no provider of this release honours: a later release deletes rows.
`_LIMITS` compares a task with a provider's capabilities and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from domain.errors import TaskError
from domain.judges import needs_secret
from domain.providers import PROVIDERS, ProviderCapabilities
from domain.task_config import EnvironmentConfig
from domain.task_steps import TaskStep
from domain.tasks import EnvValue, Task
from domain.verifier_place import verifier_place
from domain.vocabulary import SandboxProvider

__all__ = [
    "NOT_YET",
    "ProviderVerdict",
    "refuse_unrunnable",
    "unenforced_sizes",
    "unsupported_keys",
    "verdict",
    "verdicts",
]


class ProviderVerdict(BaseModel):
    """TaskProviderVerdict of contract 3.3."""

    model_config = ConfigDict(frozen=True)

    ok: bool
    reason: str | None = None
    degrades_to: str | None = None


MAIN_SERVICE = "main"


@dataclass(frozen=True)
class NotYet:
    """A declaration this release does not honour: the key as authors write it, and when it is declared."""

    key: str
    reason: str
    is_declared: Callable[[Task], bool]


NOT_YET: tuple[NotYet, ...] = (
    NotYet(
        "[[verifier.collect]].service",
        "multi-container tasks are not supported yet",
        lambda task: any(hook.service != MAIN_SERVICE for hook in task.collect),
    ),
    NotYet(
        "artifacts.service",
        "multi-container tasks are not supported yet",
        lambda task: any(
            each.service not in (None, MAIN_SERVICE) for part in _parts(task) for each in part.artifacts
        ),
    ),
    NotYet(
        "[environment].network_mode",
        "allowlist is not supported yet",
        lambda task: "allowlist" in (task.network.mode, task.agent_network.mode),
    ),
    NotYet(
        "[agent].network_mode",
        "a network that differs from [environment]'s is not supported yet",
        lambda task: task.agent_network != task.network,
    ),
    NotYet(
        "[verifier].network_mode",
        "allowlist is not supported yet",
        lambda task: task.verifier_mode == "separate" and task.verifier_network.mode == "allowlist",
    ),
    NotYet(
        "[verifier.environment]",
        "only its image, sizes, network, env, workdir and healthcheck are supported",
        lambda task: _asks_for_more(task.verifier_environment),
    ),
    NotYet(
        "[verifier.environment.env]",
        "a ${VAR} template without a default needs secrets, which are not supported yet",
        lambda task: _has_open_template(task.verifier_environment_env),
    ),
    NotYet("[environment].gpus", "GPUs are not supported yet", lambda task: task.gpus > 0),
    NotYet("[environment.tpu]", "TPUs are not supported", lambda task: task.tpu is not None),
    NotYet(
        "environment/docker-compose.yaml",
        "multi-container tasks are not supported yet",
        lambda task: task.has_compose,
    ),
    NotYet("[environment].os", "only linux is supported", lambda task: task.os != "linux"),
    NotYet(
        "[environment.env]",
        "a ${VAR} template without a default needs secrets, which are not supported yet",
        lambda task: _has_open_template(task.env),
    ),
    NotYet(
        "[verifier.env]",
        "a ${VAR} template that asks for no judge's credential needs a default",
        lambda task: any(
            needs_secret(value) for part in _parts(task) for value in part.verifier_env.values()
        ),
    ),
    NotYet(
        "[solution.env]",
        "a ${VAR} template without a default is not supported yet",
        lambda task: _has_open_template(task.solution_env),
    ),
)


def unsupported_keys(task: Task) -> list[str]:
    """`key: reason` for each declaration that no provider of this release honours."""
    return [f"{row.key}: {row.reason}" for row in NOT_YET if row.is_declared(task)]


def verdict(task: Task, provider: ProviderCapabilities) -> ProviderVerdict:
    """Whether `provider` runs the task as declared; the reason names every obstacle."""
    reasons = unsupported_keys(task)
    if not provider.is_runnable:
        reasons.append(f"{provider.name}: boxes of this provider are not supported yet")
    reasons += [reason for limit in _LIMITS for reason in limit(task, provider)]
    return ProviderVerdict(ok=not reasons, reason="; ".join(reasons) or None)


def verdicts(
    task: Task, table: Mapping[SandboxProvider, ProviderCapabilities] = PROVIDERS
) -> dict[str, ProviderVerdict]:
    """Provider name → verdict, for every provider of the table."""
    return {name.value: verdict(task, capabilities) for name, capabilities in table.items()}


def unenforced_sizes(task: Task, provider: ProviderCapabilities) -> list[str]:
    """Sizes that the task declares, for the agent or a verifier of its own, and that bind nobody there."""
    return [
        size for size in provider.unenforced if any(getattr(sizes, size) for _, sizes in _size_tables(task))
    ]


def refuse_unrunnable(task: Task, table: Mapping[SandboxProvider, ProviderCapabilities] = PROVIDERS) -> None:
    """Raise `TaskError` for a task that no provider runs: it is refused at import."""
    reasons = unsupported_keys(task)
    if reasons:
        raise TaskError("; ".join(reasons), code="feature_unsupported")
    answers = verdicts(task, table)
    if not any(answer.ok for answer in answers.values()):
        told = "; ".join(f"{name}: {answer.reason}" for name, answer in answers.items())
        raise TaskError(f"no provider can run this task: {told}", code="provider_unsupported")


def _asks_for_more(own: EnvironmentConfig | None) -> bool:
    """Whether a verifier's environment declares what only an agent's can have, or nobody's yet."""
    if own is None:
        return False
    return bool(own.gpus or own.tpu or own.mcp_servers or own.skills_dir or own.os != "linux")


def _parts(task: Task) -> tuple[Task | TaskStep, ...]:
    """The task and its steps, which declare some things of their own."""
    return (task, *task.steps)


def _has_open_template(env: Mapping[str, EnvValue]) -> bool:
    return any(not value.is_satisfied for value in env.values())


def _network(task: Task, provider: ProviderCapabilities) -> Iterable[str]:
    asked = {"[environment].network_mode": task.agent_network.mode}
    if task.verifier_mode == "separate":
        asked["[verifier].network_mode"] = task.verifier_network.mode
    for key, mode in asked.items():
        if mode != "allowlist" and mode not in provider.network_modes:
            why = provider.missing_here.get(mode, "the provider does not offer it")
            yield f"{key}: {mode} on {provider.name}: {why}"


def _image(task: Task, provider: ProviderCapabilities) -> Iterable[str]:
    if task.docker_image is not None and not provider.supports_docker_image:
        yield f"[environment].docker_image: {provider.name} runs on this machine's own system files"
    elif task.docker_image is None and task.has_run_instructions and not provider.supports_run_instructions:
        yield f"environment/Dockerfile: {provider.missing_here.get('run', 'RUN is not carried out')}"


def _verifier_image(task: Task, provider: ProviderCapabilities) -> Iterable[str]:
    if task.verifier_mode != "separate" or verifier_place(task).is_tasks_image:
        return
    if verifier_place(task).docker_image is not None:
        if not provider.supports_docker_image:
            yield f"[verifier.environment].docker_image: {provider.name} runs on this machine's own files"
    elif task.has_tests_run_instructions and not provider.supports_run_instructions:
        yield f"tests/Dockerfile: {provider.missing_here.get('run', 'RUN is not carried out')}"


def _users(task: Task, provider: ProviderCapabilities) -> Iterable[str]:
    if task.agent_user not in (None, "root", "0") and not provider.supports_users:
        yield f"[agent].user: {provider.missing_here.get('users', 'only the box user')}"


def _size_tables(task: Task) -> Iterable[tuple[str, Task | EnvironmentConfig]]:
    """The tables of `task.toml` that may declare sizes."""
    yield "environment", task
    if task.verifier_environment is not None:
        yield "verifier.environment", task.verifier_environment


def _ceilings(task: Task, provider: ProviderCapabilities) -> Iterable[str]:
    for table, sizes in _size_tables(task):
        for key, wanted, ceiling in (
            ("cpus", sizes.cpus, provider.max_cpus),
            ("memory_mb", sizes.memory_mb, provider.max_memory_mb),
            ("storage_mb", sizes.storage_mb, provider.max_storage_mb),
        ):
            if wanted is not None and ceiling is not None and wanted > ceiling:
                yield f"[{table}].{key}: {wanted:g} is above {provider.name}'s {ceiling:g}"


_LIMITS: tuple[Callable[[Task, ProviderCapabilities], Iterable[str]], ...] = (
    _network,
    _image,
    _verifier_image,
    _users,
    _ceilings,
)
