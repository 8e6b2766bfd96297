"""Accept /app/merge.py only if it is right, and if each program of near_misses/ is seen to be rejected.

A near miss that passes means that this check is broken: it then ends without a reward, which is an error of scoring
and never the agent's score.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

ANSWER = Path("/app/merge.py")
CASES = [
    # The first two catch most mistakes at once.
    ([[12, 13], [1, 10], [2, 3], [20, 20], [10, 11]], [[1, 11], [12, 13]]),
    ([[1, 2], [9, 4], [5, 6]], None),
    ([[1, 3], [2, 6], [8, 10]], [[1, 6], [8, 10]]),
    ([], []),
    ([[5, 7]], [[5, 7]]),
    ([[8, 10], [1, 3], [2, 6]], [[1, 6], [8, 10]]),
    ([[1, 3], [3, 5]], [[1, 5]]),
    ([[1, 10], [2, 3], [12, 13]], [[1, 10], [12, 13]]),
    ([[4, 4]], []),
    ([[1, 3], [4, 4], [5, 6]], [[1, 3], [5, 6]]),
    ([[-5, -1], [-1, 0], [2, 2]], [[-5, 0]]),
    ([[3, 1]], None),
]


class Rejected(Exception):
    """The program is wrong; the message says how."""


def random_case() -> tuple[list[list[int]], list[list[int]]]:
    """Intervals with the answer counted point by point, which shares nothing with the usual algorithm."""
    intervals = [[start, start + random.randint(0, 4)] for start in random.choices(range(-20, 20), k=8)]
    covered = {point for start, end in intervals for point in range(start, end)}
    merged: list[list[int]] = []
    for point in sorted(covered):
        if merged and merged[-1][1] == point:
            merged[-1][1] = point + 1
        else:
            merged.append([point, point + 1])
    return intervals, merged


def run(program: Path, intervals: list[list[int]]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-B", str(program)],
            input=json.dumps(intervals),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Rejected(f"{intervals}: {error}") from None


def check_case(program: Path, intervals: list[list[int]], merged: list[list[int]] | None) -> None:
    ran = run(program, intervals)
    if merged is None:
        if ran.returncode != 1 or ran.stdout:
            raise Rejected(f"{intervals}: exit code {ran.returncode}, printed {ran.stdout!r}")
        return
    try:
        answer = json.loads(ran.stdout)
    except (ValueError, RecursionError):
        raise Rejected(f"{intervals}: printed {ran.stdout!r} {ran.stderr[-200:]!r}") from None
    # Compared as text, where 1.0 is not 1 and true is not 1.
    if ran.returncode != 0 or ran.stdout.count("\n") > 1 or json.dumps(answer) != json.dumps(merged):
        raise Rejected(f"{intervals}: exit code {ran.returncode}, printed {ran.stdout!r}, not {merged}")


def check(program: Path) -> None:
    if program.is_symlink() or not program.is_file():
        raise Rejected(f"{program} is not a regular file")
    for intervals, merged in CASES + [random_case() for _ in range(5)]:
        check_case(program, intervals, merged)


def check_near_misses() -> None:
    for program in sorted(Path("/tests/near_misses").glob("*.py")):
        try:
            check(program)
        except Rejected:
            continue
        sys.exit(f"this check is broken: it accepts {program.name}")


def main() -> None:
    reward = 1
    try:
        check(ANSWER)
    except Rejected as error:
        print(f"rejected: {error}")
        reward = 0
    if reward:
        check_near_misses()
    Path("/logs/verifier").mkdir(parents=True, exist_ok=True)
    Path("/logs/verifier/reward.txt").write_text(f"{reward}\n")


main()
