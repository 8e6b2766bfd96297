"""Reads that wait while the server is away: what is followed does not end because the server restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from cli.cells import one_line
from cli.errors import Refused, Unreachable
from cli.output import hint

FIRST_WAIT_SEC = 1.0
LONGEST_WAIT_SEC = 30.0

Answer = TypeVar("Answer")


def tell_break(reason: str) -> None:
    """Say on stderr what is being waited for."""
    hint(f"waiting for the server: {one_line(reason)}")


def is_passing(error: Refused) -> bool:
    """Whether waiting may change the answer: a counted limit, or the server's own fault."""
    return error.status == 429 or error.status >= 500


def read_patiently(
    read: Callable[[], Answer],
    *,
    on_break: Callable[[str], None] = tell_break,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """What `read` answers, asked again for as long as the server is away or asks to wait.

    Raises `Refused` for an answer that waiting cannot change.
    """
    wait_sec = FIRST_WAIT_SEC
    while True:
        stated_wait_sec = 0.0
        try:
            return read()
        except Unreachable as error:
            reason = error.message
        except Refused as error:
            if not is_passing(error):
                raise
            stated_wait_sec, reason = error.retry_after_sec or 0.0, error.message
        on_break(reason)
        sleep(max(wait_sec, stated_wait_sec))
        wait_sec = min(wait_sec * 2, LONGEST_WAIT_SEC)
