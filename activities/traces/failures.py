"""Which kind of failure a harness reports, from the HTTP status it quotes and from its words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

FailureKind = Literal["auth", "rate_limit", "context_length", "safety_refusal", "budget", "other"]

MESSAGE_CHARS = 4_000

_STATUS_KINDS: dict[int, FailureKind] = {
    401: "auth",
    402: "budget",
    403: "auth",
    413: "context_length",
    429: "rate_limit",
}
# Words win over the status: providers answer 400 for most of these, and 429 for an empty account.
_WORDS: tuple[tuple[FailureKind, str], ...] = (
    (
        "budget",
        r"spend(ing)? limit|credit balance|insufficient[_ ](quota|funds|credits)|billing_error"
        r"|budget (is )?exceeded|payment required|check your plan and billing",
    ),
    (
        "context_length",
        r"context[_ ](length|window)|prompt is too long|maximum context|too many (input )?tokens"
        r"|input (is|token count.*) (too long|exceeds)|exceeds the maximum number of tokens"
        r"|request too large",
    ),
    (
        "safety_refusal",
        r"usage policy|content[_ ]policy|content[_ ]filter|safety (system|reasons|refusal)|model refused"
        r"|flagged (as|for)|finish_?reason\W+(safety|prohibited_content)|policy_violation",
    ),
    ("rate_limit", r"rate[_ -]?limit|too many requests|resource[_ ]exhausted|quota exceeded"),
    (
        "auth",
        r"invalid (x-)?api[_ -]?key|authentication[_ ](error|failed)|failed to authenticate|unauthorized"
        r"|api key not valid|permission[_ ]denied|please run /login",
    ),
)
_PATTERNS: tuple[tuple[FailureKind, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(words, re.IGNORECASE)) for kind, words in _WORDS
)
_QUOTED_STATUS = re.compile(
    r"""(?:^|API\ Error:?\s*|status(?:\ code)?:?\s*|"code":\s*|error:\s*|HTTP/?[\d.]*\s*)([45]\d\d)\b""",
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)


@dataclass(frozen=True)
class StreamError:
    """A failure in a harness's own words."""

    message: str
    kind: FailureKind
    http_status: int | None = None


def stream_error(message: str, *, status: int | None = None, kind: FailureKind | None = None) -> StreamError:
    """A failure with its kind; `status` and `kind` where the harness says them itself."""
    shown = message.strip()[:MESSAGE_CHARS] or "the harness gave no reason"
    quoted = _QUOTED_STATUS.search(shown)
    http_status = status or (int(quoted[1]) if quoted else None)
    return StreamError(shown, kind or _kind_of(shown, http_status), http_status)


def _kind_of(message: str, status: int | None) -> FailureKind:
    if status is not None and status >= 500:
        return "other"
    for kind, pattern in _PATTERNS:
        if pattern.search(message):
            return kind
    return _STATUS_KINDS.get(status or 0, "other")
