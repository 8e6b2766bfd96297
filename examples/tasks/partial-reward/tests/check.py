"""Each function is worth a quarter of `reward`, and is listed under its own name."""

import json
import subprocess
import sys
from pathlib import Path

CASES = {
    "to_roman": [
        (1, "I"), (3, "III"), (4, "IV"), (9, "IX"), (14, "XIV"), (40, "XL"), (90, "XC"), (400, "CD"), (444, "CDXLIV"),
        (1994, "MCMXCIV"), (2026, "MMXXVI"), (3999, "MMMCMXCIX"), (0, ValueError), (4000, ValueError), (-1, ValueError),
    ],
    "to_seconds": [
        ("45s", 45), ("1h30m", 5400), ("2d", 172800), ("1d2h3m4s", 93784), ("0s", 0), ("90m", 5400), ("007s", 7),
        ("", ValueError), ("5", ValueError), ("1m1h", ValueError), ("1h1h", ValueError), ("-1s", ValueError),
        ("1.5h", ValueError), ("1h 30m", ValueError), ("1H", ValueError), ("10", ValueError), ("h", ValueError),
    ],
    "to_size": [
        (0, "0 B"), (512, "512 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (1048575, "1.0 MiB"),
        (1048576, "1.0 MiB"), (5 * 1024**3, "5.0 GiB"), (1024**4, "1.0 TiB"), (3000 * 1024**4, "3000.0 TiB"),
        (972800, "950.0 KiB"), (-1, ValueError),
    ],
    "to_columns": [
        ("A", 1), ("Z", 26), ("AA", 27), ("AZ", 52), ("BA", 53), ("ZZ", 702), ("AAA", 703), ("XFD", 16384),
        ("", ValueError), ("a", ValueError), ("A1", ValueError), ("É", ValueError), (" A", ValueError),
    ],
}  # fmt: skip

# Runs in a process of its own; answers leave it as JSON lines, after everything that the module may print.
CHILD = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("convert", "/app/convert.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
name, arguments = json.loads(sys.stdin.read())
answers = []
for argument in arguments:
    try:
        answers.append(["value", getattr(module, name)(argument)])
    except ValueError:
        answers.append(["ValueError", None])
    except Exception as error:
        answers.append(["error", repr(error)])
print()
print(json.dumps(answers))
"""


def answers_of(name: str) -> list[object]:
    """What the agent's function answers to each case; empty if it cannot be asked."""
    arguments = [argument for argument, _ in CASES[name]]
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-B", "-c", CHILD],
            input=json.dumps([name, arguments]),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=10,
        )
        answers = json.loads(ran.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError, RecursionError) as error:
        print(f"{name}: no answers: {error!r}")
        return []
    return answers if isinstance(answers, list) else []


def is_right(name: str) -> bool:
    wanted = [["ValueError", None] if value is ValueError else ["value", value] for _, value in CASES[name]]
    answers = answers_of(name)
    for case, got, right in zip(CASES[name], answers, wanted):
        # Compared as JSON, where true is not 1 and 1.0 is not 1.
        if json.dumps(got) != json.dumps(right):
            print(f"{name}({case[0]!r}): {got}")
            return False
    return len(answers) == len(wanted)


def main() -> None:
    scores = {name: float(is_right(name)) for name in CASES}
    reward = sum(scores.values()) / len(scores)
    Path("/logs/verifier").mkdir(parents=True, exist_ok=True)
    Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": reward, **scores}) + "\n")


main()
