"""The pages agree with the code and with each other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from domain.causes import CONSEQUENCES, Cause
from domain.support import NOT_YET
from tests.docs.settings_page import settings_page
from workflows import names

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md")), ROOT / "examples/README.md"]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#([^)\s]+))?\)")
FENCE = re.compile(r"^```(\S*)$", re.MULTILINE)
# `sh` and `python` are run by tests/e2e/test_docs.py; the others are shown only.
FENCES = {"", "sh", "python", "text", "toml", "yaml", "json"}


def test_the_settings_page_is_up_to_date() -> None:
    written = (ROOT / "docs/settings.md").read_text()
    assert written == settings_page(), "write it anew: python -m tests.docs.settings_page > docs/settings.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        linked = page.parent / target
        assert linked.exists(), f"{target} does not exist"
        assert not anchor or anchor in _anchors(linked), f"{target} has no heading #{anchor}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_shell_blocks_are_of_the_kind_that_a_test_runs(page: Path) -> None:
    opened = FENCE.findall(page.read_text())[::2]
    assert set(opened) <= FENCES


def test_what_tasks_may_not_declare_yet_is_on_the_page_of_limits() -> None:
    page = (ROOT / "docs/limits.md").read_text()
    assert [row.key for row in NOT_YET if f"`{row.key}`" not in page] == []


def test_every_signal_for_a_client_is_on_the_page_of_the_temporal_client() -> None:
    page = (ROOT / "docs/temporal-client.md").read_text()
    signals = (names.SIGNAL_CANCEL, names.SIGNAL_STOP_TRIALS, names.SIGNAL_SET_PAUSED)
    assert [name for name in signals if f"`{name}`" not in page] == []


def test_tools_that_contributors_are_told_to_run_are_locked() -> None:
    told = set(re.findall(r"^\.venv/bin/(\S+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE))
    locked = set(re.findall(r"^([\w-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert "pre-commit" in told
    assert told <= locked


def test_the_table_of_causes_is_the_one_that_counts() -> None:
    page = (ROOT / "docs/life-of-a-trial.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    shown = {row[0]: row[2:] for row in rows if len(row) == 7 and row[0].startswith("`")}
    assert shown == {f"`{cause}`": _consequence(cause) for cause in Cause}


def _consequence(cause: Cause) -> list[str]:
    what = CONSEQUENCES[cause]
    names = [f"`{name}`" if name else "-" for name in (what.exception, what.harbor_name)]
    status = f"`{what.status}`" if what.status else "the verifier's"
    return [_yes(what.is_verified), status, *names, _yes(what.is_retried)]


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
