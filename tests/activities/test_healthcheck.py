"""A healthcheck's clock: what counts as a failure, and when it is asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from activities.healthcheck import await_healthy
from activities.sandboxes.base import Box, RunResult
from domain.errors import HealthcheckFailed
from domain.task_config import HealthcheckConfig


class ProbedBox:
    """Answers each probe with the next exit code, the last one for ever; None is no answer in time."""

    def __init__(self, *codes: int | None) -> None:
        self._codes = list(codes)
        self.asked: list[Sequence[str]] = []

    async def run(self, argv: Sequence[str], **_: Any) -> RunResult:
        self.asked.append(argv)
        code = self._codes.pop(0) if len(self._codes) > 1 else self._codes[0]
        if code is None:
            raise TimeoutError
        return RunResult(code, b"", b"connection refused")


def check(**members: float) -> HealthcheckConfig:
    quick = {"interval_sec": 0.001, "start_interval_sec": 0.001}
    return HealthcheckConfig.model_validate({"command": "true", **quick, **members})


async def ask(box: ProbedBox, config: HealthcheckConfig) -> None:
    await await_healthy(cast("Box", box), config, None, ("MODE", "A"))


async def test_it_is_asked_until_it_answers() -> None:
    box = ProbedBox(1, None, 0)
    await ask(box, check(retries=3))
    assert len(box.asked) == 3


async def test_retries_that_are_used_up_fail_with_what_was_said_last() -> None:
    box = ProbedBox(1)
    with pytest.raises(HealthcheckFailed, match="failed 3 times: exit code 1: connection refused"):
        await ask(box, check())
    assert len(box.asked) == 3


async def test_no_answer_is_a_failure() -> None:
    with pytest.raises(HealthcheckFailed, match="no answer within 2 s"):
        await ask(ProbedBox(None), check(timeout_sec=2, retries=1))


async def test_failures_inside_the_start_period_do_not_count() -> None:
    box = ProbedBox(*[1] * 20, 0)
    await ask(box, check(start_period_sec=60, retries=1))
    assert len(box.asked) == 21


async def test_without_retries_one_failure_is_enough() -> None:
    with pytest.raises(HealthcheckFailed):
        await ask(ProbedBox(1), check(retries=0))


async def test_the_tasks_own_variables_are_not_seen() -> None:
    box = ProbedBox(0)
    await ask(box, check())
    assert list(box.asked[0][-2:]) == ["A", "MODE"]
