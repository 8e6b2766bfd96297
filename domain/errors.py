"""Every error of ours, in one tree.

EvolveError                      a stable `code`, a sentence, and where it helps the input at fault
├── ApiError                     what the API answers: contract codes with their HTTP status
├── TaskError                    a task directory or task.toml that cannot be honoured, by name
├── ArchiveError                 an archive that is unsafe or unreadable
├── ImageBuildFailed             a task's image; carries the build log's end
│   └── BaseImageUnavailable     what it builds on is neither here nor to be had
└── InfrastructureFailure        our or a provider's fault, never the agent's; has a `signature`
    ├── SandboxDeath             the box is gone
    ├── ProviderCreateFailure    the provider could not make the box
    ├── CapacityWait             the provider or host has no room now; waited for, not retried
    ├── StreamDisconnect         a provider's stream broke
    ├── ExecChdirFailure         the working directory does not exist in the box
    ├── ServiceDied              the image's ENTRYPOINT ended before the agent started
    ├── HealthcheckFailed        the environment did not come up
    ├── DeleteRefused            the provider does not let us destroy a box of ours
    └── ProviderUnreachable      it cannot be told whether the box lives
"""

from __future__ import annotations

from typing import Any

from domain.error_codes import HTTP_STATUS


class EvolveError(Exception):
    """Base of all; `str()` is the message people read."""

    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param
        self.details = details


class ApiError(EvolveError):
    """A refusal that the API answers in the contract's envelope.

    `code` is one of `domain.error_codes`; `param` is the one input at fault: a body path
    (`agents[0].name`), a query name or a multipart part name. `retry_after_sec` only where the wait is
    a known number.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after_sec: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message, code=code, param=param, details=details)
        self.retry_after_sec = retry_after_sec
        # The contract's table, but where one code has two (`invalid_input` is 413 for a large body).
        self.status = status or HTTP_STATUS.get(code, 500)


class TaskError(EvolveError):
    """A declaration that is malformed or cannot be honoured; the message names the key or file."""

    code = "task_parse_failed"


class ArchiveError(EvolveError):
    """An archive entry that is unsafe, or bytes that are no archive; the message names the entry."""

    code = "invalid_archive"


class ImageBuildFailed(EvolveError):
    """A task's image did not build. `excerpt` is the end of the build log."""

    code = "image_build_failed"

    def __init__(self, message: str, *, step: str = "image-build", excerpt: str | None = None) -> None:
        super().__init__(message)
        self.step = step
        self.excerpt = excerpt


class BaseImageUnavailable(ImageBuildFailed):
    """The image that a Dockerfile starts from is neither on this host nor can it be pulled."""


class InfrastructureFailure(EvolveError):
    """Ours or a provider's fault. `signature` is the contract's failure class, None where it has none."""

    code = "infrastructure_failure"
    signature: str | None = None


class SandboxDeath(InfrastructureFailure):
    """The box is gone."""

    signature = "sandbox_death"


class ProviderCreateFailure(InfrastructureFailure):
    """The provider could not make the box."""

    signature = "provider_create_failure"


class StreamDisconnect(InfrastructureFailure):
    """A provider's stream broke before its end."""

    signature = "stream_disconnect"


class ExecChdirFailure(InfrastructureFailure):
    """A command's working directory does not exist in the box."""

    signature = "exec_chdir_failure"


class ServiceDied(InfrastructureFailure):
    """The image's ENTRYPOINT ended before the agent started (contract 6.8); the message has its exit code."""


class HealthcheckFailed(InfrastructureFailure):
    """`[environment.healthcheck]` used up its retries before the agent started; nothing was spent."""

    code = "healthcheck_failed"


class CapacityWait(InfrastructureFailure):
    """No room now. It is waited for and does not count as a retry."""

    code = "capacity_wait"


class DeleteRefused(InfrastructureFailure):
    """The provider forbids us to destroy a box: asking again is of no use until a person has seen to it."""

    code = "delete_refused"


class ProviderUnreachable(InfrastructureFailure):
    """It cannot be told whether the box lives."""

    code = "provider_unreachable"
