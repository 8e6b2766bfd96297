"""What a command can fail of. Each ends the process with one line on stderr and an exit code.

EvolveError
└── CliError                    exit code 1
    ├── Refused                 the server answered with an error: its code, status, details
    ├── Unreachable             no answer, or one that broke off
    ├── NotSignedIn             no API key is known for the server
    ├── BrokenTransfer          bytes that differ from their stated length or digest
    └── NotInThisRelease        a command or flag that comes later, refused by name

Exit codes of `evolve`: 0 done, 1 refused or failed, 2 wrong usage, 130 ended by Ctrl-C.
"""

from __future__ import annotations

from typing import Any

from domain.errors import EvolveError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class CliError(EvolveError):
    """Base of what commands raise."""

    code = "failed"


class Refused(CliError):
    """The server's refusal (contract §1.8). `retry_after_sec` only where it stated a wait."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "unknown_error",
        param: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after_sec: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message, code=code, param=param, details=details)
        self.status = status
        self.retry_after_sec = retry_after_sec
        self.request_id = request_id


class Unreachable(CliError):
    """The server did not answer."""

    code = "unreachable"


class NotSignedIn(CliError):
    """There is no API key for the server."""

    code = "missing_authorization"


class BrokenTransfer(CliError):
    """Received or sent bytes are not what was stated; nothing of them is kept."""

    code = "broken_transfer"


class NotInThisRelease(CliError):
    """Refused by name instead of being half done."""

    code = "feature_unsupported"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: not in this release")


def error_line(error: EvolveError) -> str:
    """The one line that stderr gets: the message, then the code that scripts match."""
    message = " ".join(error.message.split()) or "no message"
    request_id = error.request_id if isinstance(error, Refused) and error.code == "internal_error" else None
    traced = f", request {request_id}" if request_id else ""
    return f"error: {message} ({error.code}{traced})"
