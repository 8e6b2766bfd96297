"""Every command and program that the pages show is run, as shown, page by page on one stack.

Blocks fenced as `sh` and `python` are run in order in one shell a page, in a directory that looks like a
checkout, with a home directory of its own. Only the stack's default ports are put for free ones. Blocks
fenced as `text` are not run: installing, and output.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.stack_harness import PORT_VARIABLES, SOURCE, free_ports

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("docs"), pytest.mark.timeout(900)]

# In the order of a reader; what one page leaves, the next finds.
PAGES = (
    "README.md",
    "docs/getting-started.md",
    "docs/temporal-client.md",
    "docs/operations.md",
    "examples/README.md",
)
DEFAULT_PORTS = dict(zip(PORT_VARIABLES, (8800, 8801, 7233, 8233), strict=True))
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Reader:
    """Someone who follows the pages in a checkout."""

    checkout: Path
    environment: dict[str, str]

    def follow(self, page: str) -> str:
        """Run the page's blocks until one fails; all that they said."""
        done = subprocess.run(
            ("bash", "-e"),
            input=self._script((SOURCE / page).read_text()),
            cwd=self.checkout,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def _script(self, text: str) -> str:
        for variable, port in DEFAULT_PORTS.items():
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.environment[variable]}")
        blocks = BLOCK.findall(text)
        assert blocks
        return "\n".join(f"echo '== block {n}'\n{_lines(*block)}" for n, block in enumerate(blocks, 1))


def _lines(language: str, block: str) -> str:
    return block if language == "sh" else f"python - <<'END-OF-PROGRAM'\n{block}END-OF-PROGRAM\n"


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    place = Path(tempfile.mkdtemp(prefix="evolve-docs-", dir="/tmp"))
    checkout, home = place / "evolve", place / "home"
    checkout.mkdir()
    home.mkdir()
    for entry in SOURCE.iterdir():
        (checkout / entry.name).symlink_to(entry)
    clean = {key: value for key, value in os.environ.items() if not key.startswith("EVOLVE_")}
    ports = {name: str(port) for name, port in zip(PORT_VARIABLES, free_ports(4), strict=True)}
    reader = Reader(checkout, {**clean, **ports, "HOME": str(home)})
    yield reader
    evolve = Path(sys.executable).parent / "evolve"
    subprocess.run((evolve, "down"), env=reader.environment, cwd=checkout, check=True)
    shutil.rmtree(place)


@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_shows_works(reader: Reader, page: str) -> None:
    said = reader.follow(page)
    assert not re.search(r"^(error:|Traceback)", said, re.MULTILINE), said


def test_no_page_shows_a_command_that_is_not_run() -> None:
    shown = {
        path for path in SOURCE.glob("**/*.md") if not _is_hidden(path) and BLOCK.search(path.read_text())
    }
    assert {str(path.relative_to(SOURCE)) for path in shown} == set(PAGES)


def _is_hidden(path: Path) -> bool:
    parts = path.relative_to(SOURCE).parts
    return any(part.startswith(".") or part == "tests" for part in parts)
