"""`make bench`: every part, one after the other, and one table. Exit code 1 when a part could not run."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable

from tests.bench import api_reads, cancel, gateway, handover, nop_job, oracle_docker, separate_verifier
from tests.bench.figures import Figure, print_table, say

PARTS: dict[str, Callable[[], list[Figure]]] = {
    "nop_job": nop_job.measure,
    "api_reads": api_reads.measure,
    "cancel": cancel.measure,
    "handover": handover.measure,
    "gateway": gateway.measure,
    "oracle_docker": oracle_docker.measure,
    "separate_verifier": separate_verifier.measure,
}


def main() -> int:
    figures: list[Figure] = []
    failed: list[str] = []
    began = time.monotonic()
    for name, measure in PARTS.items():
        say(f"== {name}")
        try:
            figures += measure()
        except Exception:  # a part that cannot run here must not hide the others' numbers
            traceback.print_exc()
            failed.append(name)
    print_table(figures)
    say(f"took {time.monotonic() - began:.0f} s; could not run: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
