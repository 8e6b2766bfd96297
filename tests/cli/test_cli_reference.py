"""The written reference is what the commands say of themselves."""

from __future__ import annotations

from pathlib import Path

from cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs/cli.md"


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE.read_text() == reference(), "write it anew: python -m cli.reference > docs/cli.md"


def test_every_command_of_the_release_is_on_the_page() -> None:
    for command in (
        "run",
        "job trials",
        "job resume",
        "trial retry",
        "trial trace",
        "dataset publish",
        "auth status",
        "up",
    ):
        assert f"## evolve {command}\n" in reference()
    assert "`evolve job compare`" in reference().split("## Not in this release")[1]
