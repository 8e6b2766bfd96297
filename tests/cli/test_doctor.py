"""What `evolve doctor` makes of what it found."""

from __future__ import annotations

import pytest

from cli.machine_side import ProviderVerdict
from cli.stack import doctor
from tests.cli.conftest import Evolve


def test_a_size_that_binds_nobody_has_a_line_that_says_why(
    evolve: Evolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def verdicts() -> list[ProviderVerdict]:
        return [ProviderVerdict("docker", True, "engine 27", {"storage_mb": "no quotas"})]

    monkeypatch.setattr(doctor, "provider_verdicts", verdicts)
    rows = evolve("doctor").rows
    assert ["sandbox docker", "ok", "engine 27"] in rows
    assert ["storage_mb on docker", "warn", "not enforced: no quotas"] in rows
