"""The automatic-retry policy of a job: what was asked, and what it resolves to (contract §3.7, §6.3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from domain.requests import RequestModel

MAX_RETRIES_CEILING = 10
DEFAULT_MAX_RETRIES = 2  # contract 5; published as `limits.job.default_max_retries`
MAX_WAIT_CEILING_SEC = 2_147_483.0  # contract 5: "Timer ceiling"

# Harbor 0.26.0's non-retryable exception names.
DEFAULT_EXCLUDE_EXCEPTIONS: tuple[str, ...] = (
    "APIResponseValidationError",
    "AgentAuthenticationError",
    "AgentSafetyRefusalError",
    "AgentTimeoutError",
    "ApiProviderResourceNotFoundError",
    "AuthenticationError",
    "BadRequestError",
    "BudgetExceededError",
    "CancelledError",
    "ContentPolicyViolationError",
    "ContextLengthExceededError",
    "ContextWindowExceededError",
    "DspyImportError",
    "MissingExtraError",
    "ModelNotFoundError",
    "NonZeroAgentExitCodeError",
    "NotFoundError",
    "OutputLengthExceededError",
    "OutputTokenExceededError",
    "PermissionDeniedError",
    "RegradeError",
    "RewardFileEmptyError",
    "RewardFileNotFoundError",
    "ServiceOperationsUnsupportedError",
    "UnprocessableEntityError",
    "UnsupportedModelParametersError",
    "UnsupportedParamsError",
    "VercelScopeError",
    "VerifierOutputParseError",
    "VerifierTimeoutError",
)

ExceptionName = Annotated[str, Field(min_length=1, max_length=200)]
WaitSec = Annotated[float, Field(ge=0, le=MAX_WAIT_CEILING_SEC)]


class RetryConfig(BaseModel):
    """The resolved policy, stored on the job and echoed on every job body."""

    model_config = ConfigDict(frozen=True)

    max_retries: int = 0
    include_exceptions: tuple[str, ...] | None = None
    exclude_exceptions: tuple[str, ...] = ()
    wait_multiplier: float = 1.0
    min_wait_sec: float = 1.0
    max_wait_sec: float = 60.0

    def delay_sec(self, attempt_number: int) -> float:
        """How long to wait after that attempt number failed; the first wait is `min_wait_sec`."""
        try:
            grown = self.min_wait_sec * self.wait_multiplier ** (attempt_number - 1)
        except OverflowError:
            return self.max_wait_sec
        return min(grown, self.max_wait_sec)

    def covers(self, names: Collection[str]) -> bool:
        """Whether an exception that goes by these names is one to retry: exclusion wins over inclusion."""
        if not set(names).isdisjoint(self.exclude_exceptions):
            return False
        return not self.include_exceptions or not set(names).isdisjoint(self.include_exceptions)


class RetryConfigInput(RequestModel):
    """What a request may say. For `exclude_exceptions`, absent and null differ."""

    max_retries: Annotated[int, Field(ge=0, le=MAX_RETRIES_CEILING)] | None = None
    include_exceptions: list[ExceptionName] | None = None
    exclude_exceptions: list[ExceptionName] | None = None
    wait_multiplier: Annotated[float, Field(ge=0)] | None = None
    min_wait_sec: WaitSec | None = None
    max_wait_sec: WaitSec | None = None

    def resolve(self) -> RetryConfig:
        """Absent exclusions are Harbor's default set, an explicit null is none.

        An empty include set is no filter.
        """
        if "exclude_exceptions" not in self.model_fields_set:
            exclude = DEFAULT_EXCLUDE_EXCEPTIONS
        else:
            exclude = tuple(self.exclude_exceptions or ())
        return RetryConfig(
            max_retries=DEFAULT_MAX_RETRIES if self.max_retries is None else self.max_retries,
            include_exceptions=tuple(self.include_exceptions) if self.include_exceptions else None,
            exclude_exceptions=exclude,
            wait_multiplier=1.0 if self.wait_multiplier is None else self.wait_multiplier,
            min_wait_sec=1.0 if self.min_wait_sec is None else self.min_wait_sec,
            max_wait_sec=60.0 if self.max_wait_sec is None else self.max_wait_sec,
        )
