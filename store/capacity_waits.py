"""That a trial waits for room or for its provider: a member of its record, beyond the contract's.

`x_capacity_wait`: `{waiting_for, since, until, n_refusals, waited_sec}`. `until` is null while it waits;
`n_refusals` counts what the provider refused, `waited_sec` what earlier waits came to. Waiting is no
failure and no retry: the status stays, and the attempt goes on where it was.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from store.database import now
from store.record import iso

MEMBER = "x_capacity_wait"


async def note_wait(connection: Any, row: Any, waiting_for: str) -> None:
    """A locked trial was not placed; asking again for the same thing writes nothing."""
    before = _open_wait(row)
    if before is None or before["waiting_for"] != waiting_for:
        await _write(connection, row, _waiting(row, waiting_for))


async def note_refusal(connection: Any, row: Any, n_refusals: int, waiting_for: str) -> None:
    """A locked trial's provider had no capacity, by now so often: it is back in `prepare` and waits."""
    wait = {**_waiting(row, waiting_for), "n_refusals": n_refusals}
    await connection.execute("UPDATE trials SET phase = 'prepare' WHERE id = $1", row["id"])
    await _write(connection, row, wait)


async def note_wait_over(connection: Any, row: Any) -> None:
    """A locked trial has been placed."""
    before = _open_wait(row)
    if before is not None:
        at = now()
        waited_sec = before["waited_sec"] + (at - datetime.fromisoformat(before["since"])).total_seconds()
        await _write(connection, row, {**before, "until": iso(at), "waited_sec": waited_sec})


def _open_wait(row: Any) -> dict[str, Any] | None:
    wait: dict[str, Any] | None = row["result"].get(MEMBER)
    return wait if wait is not None and wait["until"] is None else None


def _waiting(row: Any, waiting_for: str) -> dict[str, Any]:
    before = row["result"].get(MEMBER) or {"n_refusals": 0, "waited_sec": 0.0}
    since = before["since"] if _open_wait(row) else iso(now())
    return {**before, "waiting_for": waiting_for, "since": since, "until": None}


async def _write(connection: Any, row: Any, wait: dict[str, Any]) -> None:
    await connection.execute(
        "UPDATE trials SET result = result || $2 WHERE id = $1", row["id"], {MEMBER: wait}
    )
