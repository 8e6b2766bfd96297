"""A short storm: calls and faults at random, and afterwards everything is as it must be."""

from __future__ import annotations

import os

import pytest
from _pytest.capture import CaptureManager

from tests.chaos.checker import CHECKS
from tests.chaos.nemesis import DISK_FULL, ENGINE, FREEZES, KILLS, MISCHIEFS
from tests.chaos.own_engine import why_no_engine
from tests.chaos.storm import SHORT, Report, Weather, rage

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("chaos"), pytest.mark.timeout(600)]

SEED = 1
MIN_CALLS = 200


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    made = rage(Weather(seed=SEED, has_docker=why_no_engine() is None, **SHORT))
    capture = request.config.pluginmanager.getplugin("capturemanager")
    assert isinstance(capture, CaptureManager)
    with capture.global_and_fixture_disabled():
        print(f"\n{made.told()}")
        for fault, why in impossible().items():
            print(f"left out: {fault}: {why}")
    return made


def impossible() -> dict[str, str]:
    """The faults that cannot be done on this machine, and why."""
    no_engine = why_no_engine()
    no_disk = None if os.geteuid() == 0 else "this user is not root"
    return {fault: why for fault, why in ((ENGINE, no_engine), (DISK_FULL, no_disk)) if why is not None}


def test_there_was_a_storm(report: Report) -> None:
    assert report.history.n_calls >= MIN_CALLS
    named = {*KILLS, *FREEZES, *MISCHIEFS, DISK_FULL, ENGINE} - impossible().keys()
    assert {fault for fault, count in report.faults.items() if count} == named


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_after_it(report: Report, check: str) -> None:
    assert report.wrong.get(check, []) == []


def test_nothing_is_left_of_it(report: Report) -> None:
    assert {what: left for what, left in report.wrong.items() if what.startswith("left in ")} == {}
