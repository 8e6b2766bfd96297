"""Whole stacks for the bench, started as a user starts them: Temporal and Postgres as in production."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.stack_harness import SOURCE, temporary_stack
from tests.running_platform import RunningPlatform

# Boxes are directories (tests/providers/fast.py), so that what is measured is the platform.
FAST = {
    "EVOLVE_PROVIDER_PLUGINS": "tests.providers.fast:make_provider",
    "EVOLVE_SANDBOX_PROVIDER": "local",
    "EVOLVE_HOST_CPUS": "1000",
    "EVOLVE_HOST_MEMORY_MB": "1000000",
    "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
}


@contextmanager
def running_stack(environment: dict[str, str]) -> Iterator[RunningPlatform]:
    """`evolve up` on a home of its own, until the block ends."""
    with temporary_stack(environment=environment) as stack:
        stack.up()
        platform = RunningPlatform(stack)
        try:
            yield platform
        finally:
            platform.close()
