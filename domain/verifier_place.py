"""Where a separate verifier runs: a fresh box that is the task's environment again, or one of its own.

The settings are those of `[verifier.environment]` when there is one, else a copy of `[environment]`'s. Its
image is the first of: `[verifier.environment].docker_image`, `tests/Dockerfile`, the task's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict

from domain.task_config import HealthcheckConfig, NetworkPolicy
from domain.tasks import EnvValue, Task

__all__ = ["VerifierPlace", "verifier_place"]


class VerifierPlace(BaseModel):
    """`folder` holds the Dockerfile of an image that is not pinned. Sizes None are the provider's own."""

    model_config = ConfigDict(frozen=True)

    docker_image: str | None
    folder: Literal["environment", "tests"]
    build_timeout_sec: float
    network: NetworkPolicy
    cpus: float | None
    memory_mb: int | None
    storage_mb: int | None
    env: Mapping[str, EnvValue]
    workdir: str | None
    healthcheck: HealthcheckConfig | None

    @property
    def is_tasks_image(self) -> bool:
        """Whether it is the image that the agent works in."""
        return self.folder == "environment"

    @property
    def env_literals(self) -> dict[str, str]:
        """What the box itself is started with."""
        return {key: value.literal for key, value in self.env.items() if value.literal is not None}


def verifier_place(task: Task) -> VerifierPlace:
    """The box of a task whose verifier is separate.

    What `[environment]` says of its own image (working directory, healthcheck) does not hold of another.
    """
    own = task.verifier_environment
    has_own_image = task.has_tests_dockerfile or bool(own and own.docker_image)
    is_copied = own is None and not has_own_image
    return VerifierPlace(
        docker_image=_image(task),
        folder="tests" if has_own_image else "environment",
        build_timeout_sec=own.build_timeout_sec if own else task.build_timeout_sec,
        network=task.verifier_network,
        cpus=own.cpus if own else task.cpus,
        memory_mb=own.memory_mb if own else task.memory_mb,
        storage_mb=own.storage_mb if own else task.storage_mb,
        env=task.verifier_environment_env if own else task.env,
        workdir=own.workdir if own else task.workdir if is_copied else None,
        healthcheck=own.healthcheck if own else task.healthcheck if is_copied else None,
    )


def _image(task: Task) -> str | None:
    own = task.verifier_environment
    if own is not None and own.docker_image:
        return own.docker_image
    return None if task.has_tests_dockerfile else task.docker_image
