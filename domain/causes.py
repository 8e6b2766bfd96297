"""Why an agent's run ended, told from facts, and what follows from it: one table, pure.

Exit codes lie: one harness ends with 0 on a refusal, another with 0 on SIGTERM, one retries a dead key for
minutes. So what the gateway saw comes first, then how the process ended, then what the harness said of
itself. The terminal cause wins: a failure that the agent got over is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict

from domain.vocabulary import ExceptionType, TrialStatus

BudgetKind = Literal["user", "team", "other"]

TRAJECTORY_SEED = "trajectory_seed"
"""Code of the error that a harness cannot go on with the task's `trajectory.json` (contract 4.2)."""
BUDGET_REFUSED = "budget_refused"
"""Code of the error that a budget above the trial refused it before its box was made."""
AGENT_BUILD_FAILED = "agent_build_failed"
"""Code of the error that a registered agent's own build failed: it would again."""
AGENT_INSTALL_FAILED = "agent_install_failed"
"""Code of the error that an agent's files could not be put into its box, or do not run there."""
INSTALL_FAILURES = frozenset(
    {
        AGENT_BUILD_FAILED,
        AGENT_INSTALL_FAILED,
        "agent_build_cut",
        "agent_not_found",
        "agent_version_not_found",
        "agent_version_unresolvable",
        "bundle_unavailable",
    }
)
"""Codes of the errors that end an attempt because its agent could not be had or installed."""


class Cause(StrEnum):
    """What ended an agent's run."""

    FINISHED = "finished"
    OWN_CAP = "own_cap"
    CAP_TOO_LOW = "cap_too_low"
    TIMEOUT = "timeout"
    CONTEXT_LENGTH = "context_length"
    SAFETY_REFUSAL = "safety_refusal"
    NON_ZERO_EXIT = "non_zero_exit"
    BUDGET = "budget"
    AUTH = "auth"
    RATE_LIMIT = "rate_limit"
    MODEL_UNAVAILABLE = "model_unavailable"
    MODEL_NOT_FOUND = "model_not_found"
    NO_MODEL_CALL = "no_model_call"
    INSTALL = "install"


@dataclass(frozen=True)
class Consequence:
    """What follows from a cause.

    `is_verified`: the verifier runs and its word is the status. Else the trial has `status`, which goes
    with the contract's `exception` (4.2). `harbor_name` is the exception's name in Harbor: stored, and
    what a job's include and exclude sets and `-f` match. `is_retried` is what the default policy comes
    to: infrastructure failures whose name it does not exclude.
    """

    is_verified: bool
    status: TrialStatus | None = None
    exception: ExceptionType | None = None
    harbor_name: str | None = None
    is_retried: bool = False


def _verified(harbor_name: str | None = None) -> Consequence:
    return Consequence(is_verified=True, harbor_name=harbor_name)


def _infrastructure(harbor_name: str, *, is_retried: bool) -> Consequence:
    return Consequence(
        is_verified=False,
        status=TrialStatus.INFRASTRUCTURE_ERROR,
        exception=ExceptionType.INFRASTRUCTURE,
        harbor_name=harbor_name,
        is_retried=is_retried,
    )


CONSEQUENCES: Mapping[Cause, Consequence] = MappingProxyType(
    {
        # The agent's own end, good or bad: it is scored on what it left.
        Cause.FINISHED: _verified(),
        Cause.OWN_CAP: _verified("BudgetExceededError"),
        Cause.TIMEOUT: _verified("AgentTimeoutError"),
        Cause.CONTEXT_LENGTH: _verified("ContextLengthExceededError"),
        Cause.SAFETY_REFUSAL: _verified("AgentSafetyRefusalError"),
        Cause.NON_ZERO_EXIT: _verified("NonZeroAgentExitCodeError"),
        # Not the agent's: a score would say nothing about it.
        Cause.BUDGET: Consequence(
            is_verified=False,
            status=TrialStatus.BUDGET,
            exception=ExceptionType.USAGE_LIMIT,
            harbor_name="ApiUsageLimitError",
        ),
        Cause.CAP_TOO_LOW: _infrastructure("BudgetExceededError", is_retried=False),
        Cause.AUTH: _infrastructure("AgentAuthenticationError", is_retried=False),
        Cause.MODEL_NOT_FOUND: _infrastructure("ModelNotFoundError", is_retried=False),
        Cause.RATE_LIMIT: _infrastructure("RateLimitError", is_retried=True),
        Cause.MODEL_UNAVAILABLE: _infrastructure("ApiProviderError", is_retried=True),
        Cause.NO_MODEL_CALL: _infrastructure("AgentSetupError", is_retried=True),
        Cause.INSTALL: _infrastructure("AgentSetupError", is_retried=True),
    }
)


class ModelFacts(BaseModel):
    """What the gateway saw of one attempt's calls. `n_calls` counts those that reached the gateway.

    `was_admitted` is False where none of the attempt's calls ever was.
    `last_refusal` is set when the last call was refused by us (`own_cap`, `user`, `team`, `platform`, …);
    `last_status` and `last_error` are how the last call that went upstream ended (`last_error` None: well).
    """

    model_config = ConfigDict(frozen=True)

    n_calls: int = 0
    was_admitted: bool = True
    last_refusal: str | None = None
    last_status: int | None = None
    last_error: str | None = None


class AgentFacts(BaseModel):
    """Everything that is known of how an agent's run ended.

    `model` None: an agent that calls none. `must_call`: a run of it without a single call is no run.
    `said` is the kind of failure that the harness reported of itself.
    """

    model_config = ConfigDict(frozen=True)

    exit_code: int | None = None
    is_timeout: bool = False
    model: ModelFacts | None = None
    must_call: bool = False
    said: str | None = None


_REFUSED: Mapping[str, Cause] = MappingProxyType(
    {
        "own_cap": Cause.OWN_CAP,
        "user": Cause.BUDGET,
        "team": Cause.BUDGET,
        "platform": Cause.BUDGET,
        "unpriced": Cause.MODEL_NOT_FOUND,
        "no_provider_key": Cause.AUTH,
    }
)
# By the status of the provider's answer, or by a word: the provider's own where the failure came in a
# stream, the gateway's where a status says less (`gateway.operator_faults`).
_STATUS: Mapping[int, Cause] = MappingProxyType(
    {
        401: Cause.AUTH,
        402: Cause.AUTH,  # the provider's account is empty: as much the operator's to mend as a bad key
        403: Cause.AUTH,
        404: Cause.MODEL_NOT_FOUND,
        429: Cause.RATE_LIMIT,
    }
)
_WORDS: Mapping[str, Cause] = MappingProxyType(
    {
        "authentication_error": Cause.AUTH,
        "permission_error": Cause.AUTH,
        "billing_error": Cause.AUTH,
        "insufficient_quota": Cause.AUTH,
        "not_found_error": Cause.MODEL_NOT_FOUND,
        "rate_limit_error": Cause.RATE_LIMIT,
        "rate_limit_exceeded": Cause.RATE_LIMIT,
        "RESOURCE_EXHAUSTED": Cause.RATE_LIMIT,
        "context_length_exceeded": Cause.CONTEXT_LENGTH,
        "content_filter": Cause.SAFETY_REFUSAL,
    }
)
# The agent went away itself (a deadline ends it in the middle of a call), or only the figures are missing.
_NO_FAILURES = frozenset({"client_gone", "usage_missing"})
_SAID: Mapping[str, Cause] = MappingProxyType(
    {"context_length": Cause.CONTEXT_LENGTH, "safety_refusal": Cause.SAFETY_REFUSAL}
)
BUDGET_WORDS: Mapping[str, BudgetKind] = MappingProxyType(
    {"user": "user", "team": "team", "platform": "other"}
)
"""What a refusal above the trial's own cap is called in the message (contract 4.2)."""


def cause_of(facts: AgentFacts) -> Cause:
    """The terminal cause."""
    model = facts.model
    if model is not None:
        seen = _seen_by_gateway(model)
        if seen is not None and not _was_got_over(facts, seen):
            return seen
    said = _SAID.get(facts.said or "")
    # Also at its deadline: a harness that got nowhere near its model was not evaluated.
    if facts.must_call and (model is None or model.n_calls == 0) and (said is None or facts.is_timeout):
        return Cause.NO_MODEL_CALL
    if facts.is_timeout:
        return Cause.TIMEOUT
    if said is not None:
        return said
    return Cause.NON_ZERO_EXIT if facts.exit_code else Cause.FINISHED


def _seen_by_gateway(model: ModelFacts) -> Cause | None:
    """What the last call came to, None when it went well."""
    if model.last_refusal is not None:
        cause = _REFUSED.get(model.last_refusal)
        # Reaching the cap is an end like another; an agent that it never let begin was not evaluated.
        return Cause.CAP_TOO_LOW if cause is Cause.OWN_CAP and not model.was_admitted else cause
    if model.last_error is None or model.last_error in _NO_FAILURES:
        return None
    status = model.last_status
    named = _WORDS.get(model.last_error) or _STATUS.get(status or 0)
    if named is not None:
        return named
    # A request that the provider found wrong is between agent and provider; silence or a 5xx is not.
    return None if status is not None and 400 <= status < 500 else Cause.MODEL_UNAVAILABLE


def _was_got_over(facts: AgentFacts, seen: Cause) -> bool:
    """Whether an agent that says that it finished did so in spite of its last call.

    A refusal for money ends every run. After any other the harness may have gone on without (a title, a
    summary); it then ends with 0 and reports no failure. The one that ends with 0 all the same says so.
    """
    if seen in (Cause.OWN_CAP, Cause.CAP_TOO_LOW, Cause.BUDGET, Cause.MODEL_NOT_FOUND, Cause.AUTH):
        return False
    return facts.exit_code == 0 and facts.said is None and not facts.is_timeout


def is_verified(cause: str | None) -> bool:
    """Whether the verifier runs after an agent that ended so; None is an agent of which nothing is known."""
    return cause is None or CONSEQUENCES[Cause(cause)].is_verified
