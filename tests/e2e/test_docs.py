"""Every command and program that the pages show is run, as shown, page by page on one stack.

Blocks fenced as `sh` and `python` are run in order in one shell a page, in a directory that looks like a
checkout, with a home directory of its own. Only the stack's default ports are put for free ones, and the
address of a model server for the test's own provider of models, which is Anthropic's to the gateway too.
Harnesses are the real ones. Blocks fenced as `text` are not run: installing, and output.
"""

from __future__ import annotations

import json
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
import yaml

from tests.cli.stack_harness import PORT_VARIABLES, SOURCE, free_ports
from tests.e2e.harness_runs import BUNDLES
from tests.e2e.own_provider import OwnProvider, own_provider

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("docs"), pytest.mark.timeout(900)]

# In the order of a reader; what one page leaves, the next finds.
PAGES = (
    "README.md",
    "docs/getting-started.md",
    "docs/temporal-client.md",
    "docs/operations.md",
    "docs/agents.md",
    "docs/traces.md",
    "docs/gateway.md",
    "examples/README.md",
)
DEFAULT_PORTS = dict(zip(PORT_VARIABLES, (8800, 8801, 7233, 8233), strict=True))
MODEL_SERVER = "127.0.0.1:8000"
# What the provider of models is asked for: by the name that the page gives, or the one it stands for.
MODELS = ("claude-opus-5-5", "llama-4")
KEY_FILES = ("anthropic.key", "openai.key", "lab.key")
# Of the pages that run real agents on hello-file, which the scripts solve: how often it is left as it was.
N_UNSOLVED = {"README.md": 1, "docs/agents.md": 0, "docs/traces.md": 0, "docs/gateway.md": 0}  # by `nop`
SETTLED = re.compile(r"^\[.*\] +settled .*$", re.MULTILINE)
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Reader:
    """Someone who follows the pages in a checkout."""

    checkout: Path
    environment: dict[str, str]
    provider: OwnProvider

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
        text = text.replace(MODEL_SERVER, f"127.0.0.1:{self.provider.port}")
        blocks = BLOCK.findall(text)
        assert blocks
        return "\n".join(f"echo '== block {n}'\n{_lines(*block)}" for n, block in enumerate(blocks, 1))


def _lines(language: str, block: str) -> str:
    if language == "sh":
        return block
    # Temporal's SDK was seen to crash now and then (SIGSEGV) while the interpreter ends, after a program
    # had done all that it says; what it printed is still looked at.
    may_crash = " || [ $? -eq 139 ]" if "import temporalio" in block or "from temporalio" in block else ""
    return f"python - <<'END-OF-PROGRAM'{may_crash}\n{block}END-OF-PROGRAM\n"


@pytest.fixture(scope="module")
def provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnProvider]:
    hello = yaml.safe_load((SOURCE / "examples/scripted/hello.yaml").read_text())["models"]["hello"]
    scripts = tmp_path_factory.mktemp("scripts") / "models.yaml"
    scripts.write_text(yaml.safe_dump({"models": dict.fromkeys(MODELS, hello)}))
    with own_provider(scripts) as served:
        yield served


@pytest.fixture(scope="module")
def reader(provider: OwnProvider) -> Iterator[Reader]:
    # The pages' own `make` finds nothing to install: in the reader's checkout it would install that one,
    # which is gone afterwards, into the environment of all tests.
    subprocess.run(("make", "install"), cwd=SOURCE, check=True)
    place = Path(tempfile.mkdtemp(prefix="evolve-docs-", dir="/tmp"))
    checkout, home = place / "evolve", place / "home"
    checkout.mkdir()
    home.mkdir()
    for entry in SOURCE.iterdir():
        (checkout / entry.name).symlink_to(entry)
    for name in KEY_FILES:
        (checkout / name).write_text(f"sk-of-{name}-0123456789\n")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("EVOLVE_")}
    ports = {name: str(port) for name, port in zip(PORT_VARIABLES, free_ports(4), strict=True)}
    models = {
        "EVOLVE_UPSTREAMS": json.dumps({"anthropic": provider.url}),
        "EVOLVE_BUNDLES_DIR": os.environ.get("EVOLVE_TEST_BUNDLES", str(BUNDLES)),
    }
    reader = Reader(checkout, {**clean, **ports, **models, "HOME": str(home)}, provider)
    yield reader
    evolve = Path(sys.executable).parent / "evolve"
    subprocess.run((evolve, "down"), env=reader.environment, cwd=checkout, check=True)
    shutil.rmtree(place)


@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_shows_works(reader: Reader, page: str) -> None:
    said = reader.follow(page)
    assert not re.search(r"^(error:|Traceback)", said, re.MULTILINE), said
    settled = SETTLED.findall(said)
    assert all(" SCORED " in line for line in settled), "\n".join(settled)
    if page in N_UNSOLVED:
        hello = [line for line in settled if " hello-file " in line]
        assert sum(not line.endswith("reward 1.0") for line in hello) == N_UNSOLVED[page], "\n".join(hello)


def test_no_page_shows_a_command_that_is_not_run() -> None:
    shown = {
        path for path in SOURCE.glob("**/*.md") if not _is_hidden(path) and BLOCK.search(path.read_text())
    }
    assert {str(path.relative_to(SOURCE)) for path in shown} == set(PAGES)


def _is_hidden(path: Path) -> bool:
    parts = path.relative_to(SOURCE).parts
    return any(part.startswith(".") or part == "tests" for part in parts)
