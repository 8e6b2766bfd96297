"""That a trial waits for room or for its provider: a member of its record, beyond the contract's.

`x_capacity_wait`: `{waiting_for, since, until, n_refusals, waited_sec}`. `until` is null while it waits;
`n_refusals` counts what the provider refused, `waited_sec` what earlier waits came to. Waiting is no
failure and no retry: the status stays, and the attempt goes on where it was. Each wait is told once in the
job's stream, when it begins.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from domain.events import trial_waiting
from store.database import now
from store.events import append_events
from store.record import iso, name_of

MEMBER = "x_capacity_wait"


async def note_wait(connection: Any, row: Any, waiting_for: str) -> None:
    """A locked trial was not placed; asking again for the same thing writes nothing."""
    before = _open_wait(row)
    if before is None or before["waiting_for"] != waiting_for:
        await _begin(connection, row, _waiting(row, waiting_for))


async def note_refusal(connection: Any, row: Any, n_refusals: int, waiting_for: str) -> None:
    """A locked trial's provider had no capacity, by now so often: it is back in `prepare` and waits."""
    wait = {**_waiting(row, waiting_for), "n_refusals": n_refusals}
    await connection.execute("UPDATE trials SET phase = 'prepare' WHERE id = $1", row["id"])
    await _begin(connection, row, wait)


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


async def _begin(connection: Any, row: Any, wait: dict[str, Any]) -> None:
    """A wait that is open already goes on, for something else or once more: the stream is not told again."""
    await _write(connection, row, wait)
    told = trial_waiting(name_of(row), waiting_for=wait["waiting_for"], since=wait["since"])
    await append_events(connection, row["job_id"], [told])


async def _write(connection: Any, row: Any, wait: dict[str, Any]) -> None:
    await connection.execute(
        "UPDATE trials SET result = result || $2 WHERE id = $1", row["id"], {MEMBER: wait}
    )
