"""Telling the operator's faults from the agent's own bad requests, by what a provider's error says.

Providers answer a bad key with 400 and an empty account with 400 or 429, as they answer wrong requests and
haste. What is told apart here ends a trial as the platform's failure, and the box hears nothing of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from gateway.members import mappings

FaultKind = Literal["authentication_error", "billing_error", "insufficient_quota"]
"""As the row of the call says it; `domain.causes` knows each of them."""

# A provider's own word: an error's `type`, `code` or `status`, or the `reason` of one of its details.
_WORDS: Mapping[str, FaultKind] = {
    # Anthropic
    "authentication_error": "authentication_error",
    "billing_error": "billing_error",
    # OpenAI
    "invalid_api_key": "authentication_error",
    "account_deactivated": "authentication_error",
    "insufficient_quota": "insufficient_quota",
    "billing_not_active": "billing_error",
    "billing_hard_limit_reached": "billing_error",
    # Gemini
    "API_KEY_INVALID": "authentication_error",
    "API_KEY_SERVICE_BLOCKED": "authentication_error",
    "UNAUTHENTICATED": "authentication_error",
    "SERVICE_DISABLED": "authentication_error",
    "CONSUMER_INVALID": "authentication_error",
    "CONSUMER_SUSPENDED": "authentication_error",
    "BILLING_DISABLED": "billing_error",
    # DashScope, Moonshot, Z.ai
    "InvalidApiKey": "authentication_error",
    "Arrearage": "billing_error",
    "AllocationQuota.FreeTierOnly": "billing_error",
    "invalid_authentication_error": "authentication_error",
    "exceeded_current_quota_error": "insufficient_quota",
    "1113": "insufficient_quota",
}
# Where the word is that of any wrong request, and only the sentence tells. Matched from its beginning: what
# a request holds is quoted later in a message, if at all.
_SENTENCES: tuple[tuple[re.Pattern[str], FaultKind], ...] = (
    (re.compile(r"Your credit balance is too low"), "billing_error"),
    (re.compile(r"You have reached your specified API usage limits"), "billing_error"),
    (re.compile(r"This organization has been disabled"), "authentication_error"),
    (re.compile(r"API key (?:not valid|expired|not found)"), "authentication_error"),
    (re.compile(r"User location is not supported"), "authentication_error"),
    (re.compile(r"Your prepayment credits are depleted"), "billing_error"),
    (re.compile(r"Incorrect API key provided"), "authentication_error"),
    (re.compile(r"Account \S+ is suspended"), "billing_error"),
)
# Whatever is said with them. A 402 is the operator's too, but says nothing that a box may not hear.
_STATUSES = frozenset({401, 403})


@dataclass(frozen=True)
class UpstreamFailure:
    """An error answer of a provider: `kind` for the call's row, and whether it is about our own access."""

    kind: str
    is_ours: bool


def failure_of(status: int, body: bytes) -> UpstreamFailure:
    """What an answer with an error status comes to."""
    faults: Iterator[FaultKind | None] = map(fault_told, _errors(body))
    fault = next((found for found in faults if found), None)
    return UpstreamFailure(fault or f"http_{status}", fault is not None or status in _STATUSES)


def fault_told(error: Any) -> FaultKind | None:
    """The operator's fault that an error tells: an object, or the sentence that stands for one."""
    if isinstance(error, str):
        return _of_sentence(error)
    if not isinstance(error, dict):
        return None
    members = cast(dict[str, Any], error)
    for word in _words(members):
        if word in _WORDS:
            return _WORDS[word]
    return _of_sentence(str(members.get("message", "")))


def _of_sentence(text: str) -> FaultKind | None:
    return next((fault for pattern, fault in _SENTENCES if pattern.match(text.lstrip())), None)


def _words(error: Mapping[str, Any]) -> Iterator[str]:
    for name in ("code", "type", "status"):
        if isinstance(error.get(name), str | int):
            yield str(error[name])
    for detail in mappings(error.get("details")):
        yield str(detail.get("reason"))


def _errors(body: bytes) -> Iterator[Any]:
    """The errors of a body: `{"error": …}`, Gemini's array of such, or an error's members at once."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return
    for part in mappings(document if isinstance(document, list) else [document]):
        yield part.get("error", part)
