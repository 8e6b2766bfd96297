"""The root command: its version, and what shells ask it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

from tests.cli.conftest import Evolve


def test_the_version_is_printed(evolve: Evolve) -> None:
    outcome = evolve("--version")
    assert (outcome.exit_code, outcome.out) == (0, f"evolve {version('evolve-evals')}\n")


@pytest.mark.parametrize(
    ("typed", "told"), [("evolve jo", {"job"}), ("evolve job tr", {"trials"}), ("evolve admin re", {"reap"})]
)
def test_commands_are_completed_at_every_level(
    typed: str, told: set[str], evolve: Evolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_EVOLVE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert set(evolve().out.split()) == told


@pytest.mark.parametrize(("used", "code"), [("temporalio.client", 3), ("json", 99)])
def test_where_temporals_sdk_was_used_the_end_of_a_command_is_the_end_of_its_process(
    used: str, code: int
) -> None:
    """What a Python does when it takes itself down, here an exit handler, is not reached: it may crash."""
    program = (
        f"import atexit, os, sys, {used}\n"
        "from cli.main import leave\n"
        "atexit.register(lambda: os._exit(99))\n"
        "sys.stdout.write('said')\n"
        "leave(3)\n"
    )
    done = subprocess.run((sys.executable, "-P", "-c", program), capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert used == "json" or done.stdout == "said"
