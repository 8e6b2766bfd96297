"""When a provider's breaker opens, probes and closes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from domain.breaker import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    PROBE_TIME,
    TRIALS_OF_ONE_TASK_TO_OPEN,
    WINDOW,
    Breaker,
    BreakerState,
    CreateFailure,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def failure(trial: int, *, task: str | None = None, at: datetime = NOW) -> CreateFailure:
    return CreateFailure(trial_id=str(trial), task=task or f"task-{trial}", at=at, message="500 from above")


def failing(*failures: CreateFailure) -> Breaker:
    breaker = Breaker()
    for each in failures:
        breaker = breaker.failed(each)
    return breaker


OPEN = failing(failure(1), failure(2), failure(3)).judged(0, NOW)


def test_three_failing_trials_and_no_success_open_it():
    assert (OPEN.state, OPEN.since, OPEN.outage_since) == (BreakerState.OPEN, NOW, NOW)
    assert OPEN.reason == "500 from above"
    assert OPEN.due_at() == NOW + FIRST_PAUSE


def test_one_trial_that_fails_again_and_again_is_its_own_affair():
    assert not failing(*[failure(1)] * 9).is_suspect


def test_trials_of_one_task_alone_must_be_many():
    same = [failure(n, task="odd") for n in range(TRIALS_OF_ONE_TASK_TO_OPEN)]
    assert not failing(*same[:-1]).is_suspect
    assert failing(*same).is_suspect


def test_it_stays_closed_while_creates_mostly_go_well():
    breaker = failing(failure(1), failure(2), failure(3), failure(4))
    assert breaker.judged(2, NOW) == breaker
    assert breaker.judged(1, NOW).state is BreakerState.OPEN


def test_failures_out_of_its_window_do_not_count():
    early = [failure(n, at=NOW - WINDOW) for n in (1, 2)]
    assert not failing(*early, failure(3)).is_suspect
    breaker = failing(failure(1))
    assert breaker.due_at() == NOW + WINDOW
    assert breaker.due(NOW + WINDOW).failures == ()


def test_a_pause_ends_in_a_probe_whose_success_closes_it():
    probing = OPEN.due(NOW + FIRST_PAUSE)
    assert probing.state is BreakerState.HALF_OPEN
    assert probing.outage_since == NOW
    assert probing.succeeded(NOW).state is BreakerState.CLOSED
    assert probing.succeeded(NOW).outage_since is None


def test_a_failed_probe_makes_the_pause_longer_up_to_a_ceiling():
    breaker, pauses = OPEN, [FIRST_PAUSE]
    for _ in range(6):
        due_at = breaker.due_at()
        assert due_at is not None
        breaker = breaker.due(due_at).failed(failure(9, at=due_at))
        again_at = breaker.due_at()
        assert again_at is not None
        pauses.append(again_at - due_at)
    assert pauses[:3] == [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]
    assert pauses[-1] == LONGEST_PAUSE
    assert breaker.outage_since == NOW


def test_a_probe_that_never_answers_is_followed_by_another():
    probing = OPEN.due(NOW)
    assert probing.due_at() == NOW + PROBE_TIME
    assert probing.due(NOW + PROBE_TIME).since == NOW + PROBE_TIME


def test_a_late_failure_or_success_changes_nothing_while_it_is_open():
    late = NOW + timedelta(seconds=1)
    assert OPEN.failed(failure(4, at=late)) == OPEN
    assert OPEN.succeeded(late) == OPEN


def test_what_an_operator_holds_open_is_never_probed_until_they_close_it():
    held = Breaker().held_open(NOW)
    assert (held.state, held.due_at()) == (BreakerState.OPEN, None)
    assert held.closed(NOW) == Breaker(since=NOW)
