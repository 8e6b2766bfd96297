"""Job and trial archives: built once by a workflow, then served with their length and digest."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Literal

from fastapi import Request

from api.downloads import Package
from api.platform import Platform
from domain.errors import ApiError
from store.archives import ask_for_archive, read_archive

# Below the client's download timeout of 600 s.
BUILD_WAIT_SEC = 540.0
FIRST_POLL_SEC, LAST_POLL_SEC = 0.05, 1.0


async def built_archive(
    platform: Platform, request: Request, kind: Literal["job", "trial"], subject_id: str, filename: str
) -> Package:
    """The archive, waited for while a workflow builds it and the caller stays.

    Raises `internal_error` when the build failed or nobody has built it in time, and that there is no such
    job or trial when it was deleted meanwhile.
    """
    row = await _ask(platform, kind, subject_id)
    if row["state"] == "building":
        platform.outbox.wake()
        row = await _wait(platform, request, kind, subject_id)
    if row["state"] != "ready":
        raise ApiError("internal_error", f"{filename} could not be built: {row['failure']}.")
    return Package(row["blob_key"], row["sha256"], row["size_bytes"], filename)


async def _ask(platform: Platform, kind: str, subject_id: str) -> Any:
    row = await ask_for_archive(platform.db, kind, subject_id)
    if row is None:
        raise ApiError(f"{kind}_not_found", f"The {kind} {subject_id} was deleted.")
    return row


async def _wait(platform: Platform, request: Request, kind: str, subject_id: str) -> Any:
    deadline, pause = time.monotonic() + BUILD_WAIT_SEC, FIRST_POLL_SEC
    while time.monotonic() < deadline and not platform.feed.is_closing:
        if await request.is_disconnected():
            break
        row = await read_archive(platform.db, kind, subject_id)
        if row is None:
            # What was built is of an earlier edition of the trial or job.
            row = await _ask(platform, kind, subject_id)
            platform.outbox.wake()
        if row["state"] != "building":
            return row
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LAST_POLL_SEC)
    raise ApiError(
        "internal_error", "The archive is still being built; try again.", retry_after_sec=10.0, status=503
    )
