"""What the store holds and nobody comes back to: keys, calls, uploads, blobs, intents, output."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

from activities.capture import Capture
from activities.kept_streams import keep_streams
from activities.masks import key_secrets
from activities.refining import AFTER_ALL_TRIES
from activities.signatures import AttemptRef
from activities.trial_context import Hands
from domain.reaping import Leftover, LeftoverKind
from domain.vocabulary import AttemptPhase
from store import leftovers
from store.database import now
from store.fences import Fence, Fenced, newest_writer
from store.keys import revoke_keys
from store.spend import book_open_holds
from store.streams import drop_streams
from store.uploads import fail_session

HALF_WRITTEN_AFTER = timedelta(hours=6)


async def reap_keys(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    """A settle revokes its keys first; this is for one that did not get so far."""
    stale = await leftovers.stale_keys(hands.db)
    for row in () if is_dry else stale:
        await revoke_keys(hands.db, row["trial_id"], row["attempt_number"], row["role"])
    return [
        Leftover(
            kind=LeftoverKind.KEY,
            subject=row["id"],
            why=f"{row['role']} of trial {row['trial_id']}, attempt {row['attempt_number']}, which is over",
        )
        for row in stale
    ]


async def reap_calls(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    """Calls of a gateway that never came back are booked at their holds."""
    before = now() - leftovers.CALL_GRACE
    left = await leftovers.left_calls(hands.db, before)
    for row in () if is_dry else left:
        await book_open_holds(hands.db, row["gateway_id"], before)
    return [
        Leftover(
            kind=LeftoverKind.CALL,
            subject=f"gateway {row['gateway_id']}",
            why=f"{row['n']} calls under way since more than {leftovers.CALL_GRACE}: booked at their holds",
        )
        for row in left
    ]


async def reap_uploads(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    """Sessions that nobody continues fail, and chunks that nobody will read go."""
    idle = await leftovers.idle_sessions(hands.db)
    for row in () if is_dry else idle:
        await fail_session(hands.db, row, "The upload was not continued for a day.")
    given_up = [
        Leftover(kind=LeftoverKind.UPLOAD, subject=row["id"], why="not continued for a day") for row in idle
    ]
    return given_up + await _chunks(hands, is_dry=is_dry)


async def _chunks(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    by_session: dict[str, list[str]] = {}
    for key in await hands.blobs.list("uploads/"):
        by_session.setdefault(key.split("/")[1], []).append(key)
    for session_id in await leftovers.needed_sessions(hands.db, by_session.keys()):
        del by_session[session_id]
    for keys in () if is_dry else by_session.values():
        for key in keys:
            await hands.blobs.delete(key)
    return [
        Leftover(
            kind=LeftoverKind.UPLOAD, subject=session_id, why=f"{len(keys)} chunks of a session that is over"
        )
        for session_id, keys in by_session.items()
    ]


async def reap_blobs(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    """Temporary files of writers that died; an object store forgets its own by a rule of the bucket."""
    found = await hands.blobs.half_written(now() - HALF_WRITTEN_AFTER)
    for name in () if is_dry else found:
        await hands.blobs.delete_half_written(name)
    return [
        Leftover(kind=LeftoverKind.BLOB, subject=name, why="its writer died", size_bytes=size)
        for name, size in found.items()
    ]


async def reap_intents(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    """What was delivered long ago tells nobody anything."""
    count = await leftovers.count_old_intents(hands.db)
    if count == 0:
        return []
    if not is_dry:
        await leftovers.forget_old_intents(hands.db)
    why = f"delivered more than {leftovers.INTENTS_KEPT.days} days ago"
    return [Leftover(kind=LeftoverKind.INTENT, subject=f"{count} intents", why=why)]


async def reap_streams(hands: Hands, *, is_dry: bool) -> list[Leftover]:
    """Output in pieces of attempts that are over: kept as files where the close did not come to it."""
    left = await leftovers.left_streams(hands.db)
    for row in () if is_dry else left:
        if not row["is_retired"]:
            await _keep(hands, row)
        await drop_streams(hands.db, row["trial_id"], row["attempt_number"])
    return [
        Leftover(
            kind=LeftoverKind.STREAM,
            subject=f"{row['trial_id']}, attempt {row['attempt_number']}",
            why="retired: withheld" if row["is_retired"] else "the trial has settled: kept as files",
        )
        for row in left
    ]


async def _keep(hands: Hands, row: Any) -> None:
    trial_id, number = row["trial_id"], row["attempt_number"]
    _, turn = await newest_writer(hands.db, trial_id)
    fence = Fence(
        row["job_id"], trial_id, number, AttemptPhase.PERSIST, AFTER_ALL_TRIES, is_last_resort=True, turn=turn
    )
    with suppress(Fenced):  # retired meanwhile
        context = await hands.load(AttemptRef(job_id=row["job_id"], trial_id=trial_id, attempt_number=number))
        secrets = await key_secrets(hands.db, hands.secret, trial_id, number)
        capture = Capture(hands, context, fence, secrets)
        await keep_streams(capture)
        await capture.register()
