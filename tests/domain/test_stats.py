from __future__ import annotations

from itertools import combinations
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.stats import (
    GroupSums,
    JobTotals,
    TokenCounts,
    TrialOutcome,
    empty_tally,
    is_binary,
    pass_at_k,
    primary_reward,
    rollup_mean,
)
from domain.vocabulary import SpendSource, TrialStatus


def scored(reward: float, **changes: object) -> TrialOutcome:
    return TrialOutcome.model_validate(
        {"status": TrialStatus.SCORED, "reward": reward, "rewards": {"reward": reward}, **changes}
    )


FAILED = TrialOutcome(status=TrialStatus.INFRASTRUCTURE_ERROR, has_exception=True)


def counted_pass_at_k(outcomes: list[list[bool]], k: int) -> float:
    """Over every way to choose k attempts of each task: the share that holds a success, task by task."""
    shares = [
        sum(any(chosen) for chosen in choices) / len(choices)
        for choices in (list(combinations(attempts, k)) for attempts in outcomes)
    ]
    return sum(shares) / len(shares)


@given(st.lists(st.lists(st.booleans(), min_size=2, max_size=10), min_size=1, max_size=4))
def test_pass_at_k_equals_a_count_over_every_choice(outcomes: list[list[bool]]):
    points = pass_at_k([(len(attempts), sum(attempts)) for attempts in outcomes])
    for k, value in points.items():
        assert isclose(value, counted_pass_at_k(outcomes, int(k)), abs_tol=1e-9)


@pytest.mark.parametrize(
    ("attempts", "ks"),
    [(1, []), (2, ["2"]), (3, ["2"]), (5, ["2", "4", "5"]), (10, ["2", "4", "5", "8", "10"])],
)
def test_k_is_a_power_of_two_or_a_multiple_of_five_up_to_the_smallest_count(attempts: int, ks: list[str]):
    assert list(pass_at_k([(attempts, 1), (attempts + 3, 0)])) == ks


def test_a_group_of_no_tasks_has_no_pass_at_k():
    assert pass_at_k([]) == {}


@pytest.mark.parametrize(
    ("rewards", "primary", "binary"),
    [
        (None, None, True),
        ({}, None, True),
        ({"reward": 1.0}, 1.0, True),
        ({"score": 0.0}, 0.0, True),
        ({"reward": 0.5}, 0.5, False),
        ({"a": 1.0, "reward": 0.0}, 0.0, False),
        ({"a": 1.0, "b": 0.0}, None, False),
    ],
)
def test_the_primary_reward_is_the_key_reward_or_the_only_one(
    rewards: dict[str, float] | None, primary: float | None, binary: bool
):
    assert primary_reward(rewards) == primary
    assert is_binary(rewards) is binary


def test_a_group_means_over_every_planned_trial():
    group = GroupSums(n_total=4).settle(scored(1.0)).settle(scored(0.5)).settle(FAILED)
    assert group.wire({}) == {"n_trials": 2, "n_errors": 1, "metrics": [{"mean": 0.375}], "pass_at_k": {}}
    assert not group.is_complete


def test_a_group_answers_pass_at_k_once_complete_and_binary():
    group = GroupSums(n_total=2).settle(scored(1.0))
    assert not group.answers_pass_at_k
    assert group.settle(FAILED).answers_pass_at_k
    assert not group.settle(scored(0.5)).answers_pass_at_k


def test_a_retried_trial_leaves_only_its_spend_and_a_retry():
    failed = FAILED.model_copy(update={"cost_nanos": 5, "spend_source": SpendSource.ASSUMED_CAP})
    before = JobTotals().settle(scored(1.0, cost_nanos=3))
    after = before.settle(failed).unsettle(failed)
    assert (after.cost_nanos, after.n_errored_trials, after.n_retries, after.n_unmeasured_trials) == (
        8,
        0,
        1,
        0,
    )
    group = GroupSums(n_total=2).settle(scored(1.0))
    assert group.settle(failed).unsettle(failed) == group


def test_money_and_tokens_are_unknown_until_something_settled():
    stats = JobTotals().wire(empty_tally(3), {})
    assert stats["cost_usd"] is None
    assert stats["n_input_tokens"] is None
    assert stats["n_unmeasured_trials"] == 0


def test_judge_spend_is_itemised_and_part_of_the_bill():
    outcome = scored(
        1.0,
        cost_nanos=2_000_000_000,
        judge_cost_nanos=500_000_000,
        tokens=TokenCounts(n_input_tokens=10, n_output_tokens=2),
        judge_tokens=TokenCounts(n_input_tokens=5),
        judge_spend_source=SpendSource.ASSUMED_CAP,
    )
    stats = JobTotals().settle(outcome).wire(empty_tally(1), {})
    assert (stats["cost_usd"], stats["judge_cost_usd"], stats["gpu_cost_usd"]) == (2.5, 0.5, None)
    assert (stats["n_input_tokens"], stats["n_cache_tokens"], stats["n_output_tokens"]) == (15, None, 2)
    assert stats["n_unmeasured_judge_trials"] == 1


def test_counters_are_cumulative_beside_the_disjoint_tally():
    moved = (TrialStatus.SCORED, TrialStatus.CANCELLED, TrialStatus.RUNNING, TrialStatus.SCORING)
    tally = {**empty_tally(5), TrialStatus.QUEUED.value: 1} | {status.value: 1 for status in moved}
    cancelled = TrialOutcome(status=TrialStatus.CANCELLED, has_exception=True)
    stats = JobTotals().settle(scored(0.0)).settle(cancelled).wire(tally, {})
    names = ("completed", "errored", "cancelled", "running", "pending")
    assert [stats[f"n_{name}_trials"] for name in names] == [2, 1, 1, 2, 1]
    assert set(tally) == set(TrialStatus)


def test_a_task_means_over_its_scored_trials_with_null_as_zero():
    assert rollup_mean([1.0, None]) == 0.5
    assert rollup_mean([]) is None
