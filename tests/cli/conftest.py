"""A fake API, and `evolve` called in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.main import main
from tests.cli.fake_api import KEY, FakeApi


@dataclass
class Outcome:
    """What a command left behind."""

    exit_code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """Piped output as TSV."""
        return [line.split("\t") for line in self.out.splitlines()]


Evolve = Callable[..., Outcome]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeApi]:
    """A running fake API that the environment points at."""
    fake = FakeApi()
    fake.start()
    monkeypatch.setenv("EVOLVE_HOME", str(tmp_path / "evolve-home"))
    monkeypatch.setenv("EVOLVE_DASHBOARD_URL", fake.url)
    monkeypatch.setenv("EVOLVE_API_KEY", KEY)
    yield fake
    fake.stop()


@pytest.fixture
def evolve(capsys: pytest.CaptureFixture[str]) -> Evolve:
    """Call the command line; its output is captured, so it is a pipe."""

    def call(*arguments: str) -> Outcome:
        capsys.readouterr()
        try:
            main(arguments)
            code: object = 0
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        return Outcome(code if isinstance(code, int) else 1, captured.out, captured.err)

    return call
