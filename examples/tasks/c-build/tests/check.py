"""Build a copy of the agent's sources anew, and compare what the fresh and the left program print."""

import random
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path

STATS = Path("/app/stats")
FLAGS = "CFLAGS = -std=c11 -O2 -Wall -Wextra -Werror"


class Rejected(Exception):
    """The program is wrong or does not build; the message says how."""


def run(command: list[str], cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=cwd, input=text, capture_output=True, encoding="utf-8", errors="replace", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Rejected(f"{command}: {error}") from None


def is_native_program(path: Path) -> bool:
    try:
        return not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"
    except OSError:
        return False


def build(directory: Path) -> Path:
    try:
        shutil.copytree(STATS, directory, symlinks=True, ignore=shutil.ignore_patterns("stats", "*.o"))
        makefile = (directory / "Makefile").read_text(encoding="utf-8")
    except (OSError, ValueError, shutil.Error) as error:
        raise Rejected(f"{STATS} cannot be read: {error}") from None
    if FLAGS not in makefile.splitlines():
        raise Rejected("CFLAGS were changed")
    made = run(["make", "-B"], directory)
    if made.returncode != 0:
        raise Rejected(f"make failed:\n{made.stdout}{made.stderr}")
    if "warning" in made.stderr:
        raise Rejected(f"make warned:\n{made.stderr}")
    if FLAGS.removeprefix("CFLAGS = ") not in made.stdout:
        raise Rejected("make did not compile with CFLAGS")
    return directory / "stats"


def expected_output(numbers: list[float]) -> str:
    return (
        f"count {len(numbers)}\nmean {statistics.fmean(numbers):.4f}\n"
        f"deviation {statistics.pstdev(numbers):.4f}\nmedian {statistics.median(numbers):.4f}\n"
    )


def check_output(program: Path, numbers: list[float]) -> None:
    # Quarters are exact in binary, so that both sides round the same.
    ran = run([str(program)], program.parent, " ".join(str(number) for number in numbers) + "\n")
    if ran.returncode != 0 or ran.stdout != expected_output(numbers):
        raise Rejected(f"{program} of {numbers} exited with {ran.returncode} and printed {ran.stdout!r}")


def check() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        fresh = build(Path(scratch) / "copy")
        for program in (fresh, STATS / "stats"):
            if not is_native_program(program):
                raise Rejected(f"{program} is not a compiled program")
            for size in (1, 2, 3, 4, 9, 64):
                check_output(program, [random.randint(-4000, 4000) / 4 for _ in range(size)])
            if (ran := run([str(program)], program.parent)).returncode != 1:
                raise Rejected(f"{program} of nothing exited with {ran.returncode}")


def main() -> None:
    reward = 1
    try:
        check()
    except Rejected as error:
        print(f"rejected: {error}")
        reward = 0
    Path("/logs/verifier").mkdir(parents=True, exist_ok=True)
    Path("/logs/verifier/reward.txt").write_text(f"{reward}\n")


main()
