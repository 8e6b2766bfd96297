"""A short storm: calls and faults at random, and afterwards everything is as it must be."""

from __future__ import annotations

import pytest
from _pytest.capture import CaptureManager

from tests.chaos.checker import CHECKS
from tests.chaos.storm import SHORT, Report, Weather, rage

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(600)]

SEED = 1
MIN_CALLS = 200


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    made = rage(Weather(seed=SEED, **SHORT))
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert isinstance(capture, CaptureManager)
    with capture.global_and_fixture_disabled():
        print(f"\n{made.told()}")
    return made


def test_there_was_a_storm(report: Report) -> None:
    assert report.history.n_calls >= MIN_CALLS
    assert {fault: count for fault, count in report.faults.items() if count == 0} == {}


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_after_it(report: Report, check: str) -> None:
    assert report.wrong.get(check, []) == []


def test_nothing_is_left_of_it(report: Report) -> None:
    assert {what: left for what, left in report.wrong.items() if what.startswith("left in ")} == {}
