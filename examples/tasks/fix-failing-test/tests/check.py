"""Judge the commit at the head of `main`: its module by hidden cases, its tests by being untouched."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path("/app/textstats")
FIRST_HEAD = "a5af41a2921c086f0fdb0b727d9c3091adb7286d"
CASES = [
    ("words", ["Don't panic, DON'T."], ["don't", "panic", "don't"]),
    ("words", ["'quoted' über-alles"], ["quoted", "über", "alles"]),
    ("words", [""], []),
    ("most_common", ["b a b c b a", 2], [["b", 3], ["a", 2]]),
    ("most_common", ["pear fig apple fig pear", 3], [["fig", 2], ["pear", 2], ["apple", 1]]),
    ("most_common", ["d c b a", 2], [["a", 1], ["b", 1]]),
    ("most_common", ["z z y y x", 1], [["y", 2]]),
    ("most_common", ["Ant ant bee BEE cow", 9], [["ant", 2], ["bee", 2], ["cow", 1]]),
    ("most_common", ["", 3], []),
    ("most_common", ["a b", 0], []),
    ("average_length", ["..."], 0.0),
    ("average_length", ["ab abcd"], 3.0),
]
# The agent's code runs in a process of its own and answers in JSON.
CHILD = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("textstats", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(json.dumps([getattr(module, name)(*arguments) for name, arguments in json.loads(sys.stdin.read())]))
"""


class Rejected(Exception):
    """The fix is wrong or not committed; the message says how."""


def git(*arguments: str) -> bytes:
    # No hook or monitor of the agent's runs in the verifier.
    command = ["git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    try:
        ran = subprocess.run([*command, *arguments], cwd=REPOSITORY, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Rejected(f"git {' '.join(arguments)}: {error}") from None
    if ran.returncode != 0:
        raise Rejected(f"git {' '.join(arguments)}: {ran.stderr.decode(errors='replace').strip()}")
    return ran.stdout


def check_history() -> None:
    if git("symbolic-ref", "HEAD").strip() != b"refs/heads/main":
        raise Rejected("the branch main is not checked out")
    git("merge-base", "--is-ancestor", FIRST_HEAD, "main")
    if git("rev-parse", "main").decode().strip() == FIRST_HEAD:
        raise Rejected("nothing was committed")
    if git("rev-parse", "main:test_textstats.py") != git("rev-parse", f"{FIRST_HEAD}:test_textstats.py"):
        raise Rejected("test_textstats.py was changed")


def check_clean() -> None:
    """Files are compared by content, so that neither the index nor a filter can hide a change."""
    for name in git("ls-tree", "-r", "--name-only", "-z", "main").decode(errors="replace").split("\0")[:-1]:
        file = REPOSITORY / name
        try:
            same = not file.is_symlink() and file.read_bytes() == git("cat-file", "blob", f"main:{name}")
        except OSError as error:
            raise Rejected(f"{name}: {error}") from None
        if not same:
            raise Rejected(f"{name} differs from the commit")
    # The repository's own .gitignore may be changed by the agent; ours decides what may lie around.
    if others := git("ls-files", "--others", "-z", "--exclude=__pycache__/"):
        raise Rejected(f"untracked files: {others!r}")


def check_cases(module: Path) -> None:
    questions = [[name, arguments] for name, arguments, _ in CASES]
    try:
        ran = subprocess.run(
            [sys.executable, "-I", "-B", "-c", CHILD, str(module)],
            input=json.dumps(questions),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=20,
        )
        answers = json.loads(ran.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError, RecursionError) as error:
        raise Rejected(f"the module cannot be asked: {error!r}") from None
    expected = [answer for _, _, answer in CASES]
    for case, got, wanted in zip(CASES, answers if isinstance(answers, list) else [], expected):
        if got != wanted:
            raise Rejected(f"{case[0]}{tuple(case[1])} is {got}, not {wanted}")
    if answers != expected:
        raise Rejected("not every case was answered")


def check() -> None:
    check_history()
    check_clean()
    with tempfile.TemporaryDirectory() as scratch:
        module = Path(scratch) / "textstats.py"
        module.write_bytes(git("cat-file", "blob", "main:textstats.py"))
        check_cases(module)


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
