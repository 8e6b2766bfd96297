"""Compare /app/summary.json with what the logs say; the expected values were counted by hand."""

import json
from pathlib import Path

ANSWER = Path("/app/summary.json")
EXPECTED = {
    "requests": 16,
    "by_status": {"200": 8, "201": 1, "204": 1, "304": 1, "404": 1, "500": 1, "502": 1, "503": 1, "504": 1},
    "slowest": {"path": "/report", "ms": 2950},
    "error_rate_by_path": {
        "/items": 0.25,
        "/items/404": 0.0,
        "/items/7": 0.0,
        "/items/9": 0.0,
        "/health": 0.0,
        "/report": 0.6,
    },
    "skipped_lines": 10,
}


class Rejected(Exception):
    """The answer is wrong; the message says how."""


def read_answer() -> object:
    if ANSWER.is_symlink() or not ANSWER.is_file():
        raise Rejected(f"{ANSWER} is not a regular file")
    try:
        return json.loads(ANSWER.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Rejected(f"{ANSWER} is not JSON: {error}") from None


def check() -> None:
    answer = read_answer()
    if not isinstance(answer, dict):
        raise Rejected("the answer is not an object")
    if set(answer) != set(EXPECTED):
        raise Rejected(f"the keys are {sorted(answer)}")
    for key, expected in EXPECTED.items():
        # `True == 1` in Python, so the spelling is compared too.
        if answer[key] != expected or "true" in json.dumps(answer[key]):
            raise Rejected(f"{key} is {answer[key]!r}")


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
