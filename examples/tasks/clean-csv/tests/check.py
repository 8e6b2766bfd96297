"""Compare /app/clean.csv with the expected bytes."""

from pathlib import Path

ANSWER = Path("/app/clean.csv")
EXPECTED = """\
email,name,country,signed_up
ada@example.com,Ada Lovelace,FR,2026-01-15
babs@example.com,"Barbara ""Babs"" Liskov",ES,2026-02-01
grace@example.com,"Hopper, Grace",DE,2026-02-07
jose@example.com,José García,ES,2026-03-04
noname@example.com,,DE,2025-12-31
"""


def verdict() -> str | None:
    """What is wrong with the answer, None if nothing is."""
    if ANSWER.is_symlink() or not ANSWER.is_file():
        return f"{ANSWER} is not a regular file"
    try:
        lines = ANSWER.read_bytes().decode("utf-8").split("\n")
    except (OSError, ValueError) as error:
        return f"{ANSWER} cannot be read: {error}"
    expected = EXPECTED.split("\n")
    for number, (got, wanted) in enumerate(zip(lines, expected), start=1):
        if got != wanted:
            return f"line {number} is {got!r}"
    if len(lines) != len(expected):
        return f"there are {len(lines)} lines, not {len(expected)}"
    return None


def main() -> None:
    wrong = verdict()
    print(f"rejected: {wrong}" if wrong else "accepted")
    Path("/logs/verifier").mkdir(parents=True, exist_ok=True)
    Path("/logs/verifier/reward.txt").write_text("0\n" if wrong else "1\n")


main()
