"""The long form: `python -m tests.chaos.run --seed N --minutes M`, and the seeds that once failed.

`make chaos SEED=… MINUTES=…`. Without a seed it takes one from the clock, and says it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.chaos.nemesis import Pace
from tests.chaos.own_engine import why_no_engine
from tests.chaos.storm import SHORT, Weather, rage

SEEDS = Path(__file__).parent / "seeds.txt"
LONG_PACE = Pace(gap_sec=(0.2, 6.0), frozen_sec=(1.0, 25.0), full_sec=(2.0, 15.0), mischiefs_at_once=8)
LONG_CALM_SEC = 900.0


def long_weather(seed: int, minutes: float) -> Weather:
    """Slower and harder than the short form's."""
    return Weather(
        seed=seed,
        n_calls=0,
        min_sec=60 * minutes,
        rate=3.0,
        pace=LONG_PACE,
        has_docker=why_no_engine() is None,
        calm_sec=LONG_CALM_SEC,
    )


def kept_storms() -> list[Weather]:
    """Those that once found something."""
    lines = (line.partition("#")[0].split() for line in SEEDS.read_text().splitlines())
    return [
        long_weather(int(words[0]), float(words[1]))
        if len(words) > 1
        else Weather(seed=int(words[0]), **SHORT)
        for words in lines
        if words
    ]


def main() -> int:
    arguments = _arguments()
    seed = int(time.time()) if arguments.seed is None else arguments.seed
    storms = [*([] if arguments.only else kept_storms()), long_weather(seed, arguments.minutes)]
    n_wrong = 0
    if why_no_engine() is not None:
        print(f"left out: boxes on docker, and its restart: {why_no_engine()}")
    for weather in storms:
        print(f"storm {weather.seed} begins", flush=True)
        report = rage(weather)
        print(report.told(), flush=True)
        n_wrong += bool(report.wrong)
        if report.wrong:
            print(f"keep {weather.seed} in {SEEDS}; logs are in /tmp/evolve-storm-{weather.seed}")
    return 1 if n_wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.chaos.run", description=__doc__)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", action="store_true", help="this seed alone, without the kept ones")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
