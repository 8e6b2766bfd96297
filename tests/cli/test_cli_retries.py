"""What `evolve trial show` says of attempts that were retried and of waits for capacity."""

from __future__ import annotations

from tests.cli.conftest import Evolve
from tests.cli.fake_api import FakeApi, trial


def test_a_trial_that_was_retried_shows_each_attempt_and_what_it_cost(api: FakeApi, evolve: Evolve) -> None:
    failure = {"exception_type": "InfrastructureError", "exception_message": "the box\nis gone"}
    retired = {
        "attempt_number": 1, "exception_info": failure, "cost_usd": 0.25,
        "started_at": "2026-01-01T00:00:00Z", "settled_at": "2026-01-01T00:01:00Z",
    }  # fmt: skip
    wait = {
        "waiting_for": "429", "since": "2026-01-01T00:02:00Z", "until": "2026-01-01T00:03:06Z",
        "n_refusals": 5, "waited_sec": 66.4,
    }  # fmt: skip
    api.trials["t1"] = trial("t1", n_retries=1, retries=[retired], x_capacity_wait=wait)
    out = evolve("trial", "show", "t1").out
    assert "InfrastructureError  the box\\nis gone  $0.2500  2026-01-01T00:01:00Z" in out
    assert "66 s for capacity, refused 5 times" in out


def test_a_trial_that_waits_says_for_what_and_since_when(api: FakeApi, evolve: Evolve) -> None:
    wait = {"waiting_for": "429", "since": "2026-01-01T00:02:00Z", "until": None, "n_refusals": 1}
    api.trials["t1"] = trial("t1", status="RUNNING", finished_at=None, x_capacity_wait=wait)
    assert "429 since 2026-01-01T00:02:00Z" in evolve("trial", "show", "t1").out
