"""The root command: its version, and what shells ask it."""

from __future__ import annotations

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
