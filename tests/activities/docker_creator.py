"""Run as a worker's process: makes a box and a detached command in it, says so, and waits to be killed.

Arguments: installation id, folder, trial id, image handle.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from activities.sandboxes import process
from activities.sandboxes.base import BoxSpec, BoxTag, ImageRef
from activities.sandboxes.process import ProcessSpec
from tests.activities.docker_bench import open_provider

COMMAND = "echo began; echo once >>/app/runs; until [ -e /app/go ]; do sleep 0.02; done; echo ended; exit 3"


async def main(installation_id: str, folder: str, trial_id: str, image: str) -> None:
    provider = await open_provider(installation_id, Path(folder))
    tag = BoxTag(installation_id, "job", trial_id, 1, 0, "agent", 1)
    box = await provider.create(BoxSpec(tag, ImageRef(image, image), "no-network", 600.0))
    await process.start(box, ProcessSpec("agent", ["sh", "-c", COMMAND]))
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
