"""A process in a box, followed into the store from the store's own high-water mark: nothing is doubled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from activities.masks import SecretMask, masked_in_place
from activities.sandboxes import process
from activities.sandboxes.base import Box
from activities.sandboxes.process import ExitStatus
from activities.sandboxes.process_poll import Stream
from store.database import Database
from store.fences import Fence
from store.streams import append_chunk, confirm_streams, high_water

STREAM_MAX_BYTES = 64 * 1024 * 1024
"""What is kept of one stream. An agent may print for hours; the store and its readers must live on."""


@dataclass(frozen=True)
class Followed:
    """Which process, and the names its output is stored under: the process's stream → the stored one.

    `secrets` are values, by name, that are masked before anything is stored; no byte moves.
    """

    process_name: str
    streams: dict[Stream, str]
    secrets: Mapping[str, str] = field(default_factory=dict[str, str])


class Reader(Protocol):
    """Who is told of each piece of output once it is stored."""

    async def feed(self, stream: Stream, offset: int, data: bytes) -> None: ...


async def follow_into_store(
    db: Database,
    box: Box,
    fence: Fence,
    followed: Followed,
    reader: Reader | None = None,
    on_output: Callable[[], None] | None = None,
) -> ExitStatus:
    """Store output as it comes, up to `STREAM_MAX_BYTES` a stream, until the process has ended.

    `on_output` is called for each piece, also for one that is not kept. Raises `Fenced` when another
    follower has taken over: nothing may be done to the box then.
    """
    offsets = {
        stream: await high_water(db, fence.trial_id, fence.attempt_number, stored)
        for stream, stored in followed.streams.items()
    }
    ends: dict[str, int] = {}
    end: ExitStatus | None = None
    output = process.follow(box, followed.process_name, offsets)
    async for item in masked_in_place(output, SecretMask(followed.secrets)):
        if isinstance(item, ExitStatus):
            end = item
        else:
            if on_output is not None:
                on_output()
            kept = item.data[: max(0, STREAM_MAX_BYTES - item.offset)]
            if kept:
                await append_chunk(db, fence, followed.streams[item.stream], item.offset, kept)
                ends[followed.streams[item.stream]] = item.offset + len(kept)
                if reader is not None:
                    await reader.feed(item.stream, item.offset, kept)
    assert end is not None
    await confirm_streams(db, fence, ends)
    return end
