"""Whatever happens to the trials of a job, in whatever order: the store says what a recount says."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from domain.retries import BreakCircuit, EndedAttempt, RetryAfter, Verdict, decide
from domain.retry_policy import RetryConfig
from domain.stats import TrialOutcome, pass_at_k
from domain.vocabulary import TRIAL_TERMINAL, AttemptPhase, ExceptionType, TrialStatus
from store import record
from store.database import Database
from store.fences import Fence, Fenced
from store.record import PhaseChange
from store.settle import SettleEnd, Settlement, retired, settle
from tests.finished_jobs import accept, publish, trial_ids
from tests.postgres import PostgresServer

POLICY = RetryConfig(max_retries=2)
N_TRIALS = 4
TRIALS = st.integers(0, N_TRIALS - 1)
SIGNATURES = st.sampled_from(["sandbox_death", "stream_disconnect", None])
COSTS = st.one_of(st.none(), st.integers(0, 10**9))
ENDS = {
    TrialStatus.SCORED: None,
    TrialStatus.SCORING_ERROR: ExceptionType.SCORING,
    TrialStatus.BUDGET: ExceptionType.USAGE_LIMIT,
    TrialStatus.INDETERMINATE: ExceptionType.INCOMPLETE,
    TrialStatus.INFRASTRUCTURE_ERROR: ExceptionType.INFRASTRUCTURE,
}


@dataclass
class Life:
    """What the model knows of one trial: its status, and each of its settled attempts with what followed."""

    trial_id: str
    status: TrialStatus = TrialStatus.QUEUED
    attempts: list[tuple[TrialOutcome, Verdict]] = field(default_factory=list[tuple[TrialOutcome, Verdict]])
    signatures: list[Any] = field(default_factory=list[Any])

    @property
    def is_over(self) -> bool:
        return self.status in TRIAL_TERMINAL

    @property
    def number(self) -> int:
        return len(self.retired) + 1

    @property
    def retired(self) -> list[TrialOutcome]:
        return [outcome for outcome, verdict in self.attempts if isinstance(verdict, RetryAfter)]

    @property
    def last(self) -> TrialOutcome | None:
        """The outcome that counts; None while the trial lives, or when it was stopped in its queue."""
        return self.attempts[-1][0] if self.is_over and len(self.attempts) == self.number else None


class JobMachine(RuleBasedStateMachine):
    """Two tasks, two attempts each, in a real database of its own."""

    server: PostgresServer

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.db = Database(self.server.create("template_evolve"))
        self.is_cancelling = False

    def do(self, step: Any) -> Any:
        return self.runner.run(step)

    @initialize()
    def accept_a_job(self) -> None:
        self.do(publish(self.db, "alpha", "beta"))
        self.job_id = self.do(accept(self.db, n_attempts=2))
        self.trials = [Life(trial_id) for trial_id in self.do(trial_ids(self.db, self.job_id))]

    def fence(self, life: Life, phase: AttemptPhase, number: int | None = None) -> Fence:
        return Fence(self.job_id, life.trial_id, number or life.number, phase, 1)

    @rule(index=TRIALS, to=st.sampled_from([TrialStatus.RUNNING, TrialStatus.SCORING]))
    def go_on(self, index: int, to: TrialStatus) -> None:
        life = self.trials[index]
        phase = AttemptPhase.VERIFY if to is TrialStatus.SCORING else AttemptPhase.AGENT
        if life.status is TrialStatus.SCORING and to is TrialStatus.RUNNING:
            return
        entering = record.enter_phase(self.db, self.fence(life, phase), PhaseChange(status=to))
        if life.is_over:
            with suppress(Fenced):
                assert not self.do(entering)
            return
        assert self.do(entering)
        life.status = to

    @rule(index=TRIALS, status=st.sampled_from(list(ENDS)), signature=SIGNATURES, cost=COSTS, judge=COSTS)
    def end_an_attempt(
        self, index: int, status: TrialStatus, signature: Any, cost: int | None, judge: int | None
    ) -> None:
        life = self.trials[index]
        if life.is_over or life.status is TrialStatus.QUEUED:
            return
        reward = 1.0 if status is TrialStatus.SCORED else None
        outcome = TrialOutcome(
            status=status,
            reward=reward,
            rewards=None if reward is None else {"reward": reward},
            has_exception=ENDS[status] is not None,
            cost_nanos=cost,
            judge_cost_nanos=judge,
        )
        life.signatures.append(signature if status is TrialStatus.INFRASTRUCTURE_ERROR else None)
        kind = ENDS[status]
        verdict = decide(
            POLICY,
            EndedAttempt(
                attempt_number=life.number,
                status=status,
                exception_names=(kind.value,) if kind else (),
                signatures=tuple(life.signatures),
            ),
        )
        exception = None if kind is None else (kind, "it went wrong")
        end = self.do(
            settle(
                self.db,
                self.fence(life, AttemptPhase.PERSIST),
                Settlement(outcome=outcome, exception=exception, verdict=verdict),
            )
        )
        if isinstance(verdict, RetryAfter) and self.is_cancelling:
            verdict = decide(POLICY, EndedAttempt(attempt_number=1, status=status, is_last=True))
        life.attempts.append((outcome, verdict))
        is_retired = isinstance(verdict, RetryAfter)
        life.status = TrialStatus.QUEUED if is_retired else status
        assert end == SettleEnd(status, reward, is_retired=is_retired)

    @rule(index=TRIALS)
    def settle_again(self, index: int) -> None:
        """A try whose answer got lost, or a worker that wakes: nothing changes."""
        life = self.trials[index]
        again = Settlement(TrialOutcome(status=TrialStatus.SCORED, reward=0.0, rewards={"reward": 0.0}))
        if life.retired:
            fence = self.fence(life, AttemptPhase.PERSIST, life.number - 1)
            assert self.do(retired(self.db, fence))
            try:
                self.do(settle(self.db, fence, again))
            except Fenced:
                return
            raise AssertionError("a retired attempt was settled again")
        if life.is_over:
            end = self.do(settle(self.db, self.fence(life, AttemptPhase.PERSIST), again))
            assert end.status is life.status

    @rule(index=TRIALS)
    def stop_in_the_queue(self, index: int) -> None:
        async def stop() -> None:
            async with self.db.transaction() as connection:
                await connection.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", self.job_id)
                await record.cancel_queued(connection, self.job_id, [index])

        self.do(stop())
        if self.trials[index].status is TrialStatus.QUEUED:
            self.trials[index].status = TrialStatus.CANCELLED

    @precondition(lambda self: not self.is_cancelling)
    @rule()
    def cancel_the_job(self) -> None:
        async def cancel() -> None:
            async with self.db.transaction() as connection:
                await record.cancel_job(connection, self.job_id)

        self.do(cancel())
        self.is_cancelling = True
        for life in self.trials:
            if life.status is TrialStatus.QUEUED:
                life.status = TrialStatus.CANCELLED

    def rows(self, query: str) -> list[Any]:
        async def fetch() -> list[Any]:
            return await (await self.db.pool()).fetch(query, self.job_id)

        return self.do(fetch())

    @invariant()
    def trials_are_what_their_lives_say(self) -> None:
        rows = self.rows("SELECT * FROM trials WHERE job_id = $1 ORDER BY index")
        for row, life in zip(rows, self.trials, strict=True):
            n_retired = len(life.retired)
            assert (row["status"], row["n_retries"]) == (life.status, n_retired)
            assert row["attempt_number"] == n_retired + 1
            numbers = [each["attempt_number"] for each in row["retries"]]
            assert numbers == list(range(1, n_retired + 1))
            assert (row["finished_at"] is not None) is life.is_over

    @invariant()
    def statistics_are_those_of_a_recount(self) -> None:
        [job] = self.rows("SELECT by_status, totals FROM jobs WHERE id = $1")
        tally = {status: count for status, count in job["by_status"].items() if count}
        assert tally == dict(Counter(life.status.value for life in self.trials))
        stopped = sum(life.is_over and life.last is None for life in self.trials)
        last = [life.last for life in self.trials if life.last]
        every = [outcome for life in self.trials for outcome, _ in life.attempts]
        totals = job["totals"]
        assert totals["n_errored_trials"] == stopped + sum(outcome.has_exception for outcome in last)
        assert totals["n_retries"] == sum(len(life.retired) for life in self.trials)
        assert (totals["cost_nanos"] or 0) == sum(
            (outcome.cost_nanos or 0) + (outcome.judge_cost_nanos or 0) for outcome in every
        )
        [group] = self.rows("SELECT * FROM job_groups WHERE job_id = $1")
        assert group["n_settled"] == sum(life.is_over for life in self.trials)
        assert group["n_rewarded"] == sum(outcome.rewards is not None for outcome in last)
        assert group["n_errors"] == totals["n_errored_trials"]
        assert group["reward_sum"] == sum(outcome.reward or 0.0 for outcome in last)
        assert group["pass_at_k"] == self.pass_at_k()

    def pass_at_k(self) -> dict[str, float]:
        """Of the group, once it is complete, whoever completed it."""
        if not all(life.is_over for life in self.trials):
            return {}
        solved = [bool(life.last and life.last.reward) for life in self.trials]
        return pass_at_k([(2, sum(solved[:2])), (2, sum(solved[2:]))])

    @invariant()
    def each_attempt_settled_once_and_what_follows_is_told_at_once(self) -> None:
        events = self.rows("SELECT seq, type, payload FROM job_events WHERE job_id = $1 ORDER BY seq")
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        told = [(event["type"], event["payload"].get("trial_id")) for event in events]
        for life in self.trials:
            settled = [kind for kind, trial_id in told if trial_id == life.trial_id]
            assert settled.count("trial.settled") - len(life.attempts) in (0, 1)  # one stopped in its queue
            assert settled.count("trial.retrying") == len(life.retired)
            broken = [v for _, v in life.attempts if isinstance(v, BreakCircuit)]
            assert settled.count("trial.retry_circuit_broken") == len(broken)
        for before, after in pairwise(told):
            if after[0] in ("trial.retrying", "trial.retry_circuit_broken"):
                assert before == ("trial.settled", after[1])

    def teardown(self) -> None:
        self.runner.run(self.db.close())
        self.runner.close()


def test_the_store_agrees_with_a_recount_whatever_happens(postgres: PostgresServer) -> None:
    class OnThisServer(JobMachine):
        server = postgres

    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        OnThisServer,
        settings=settings(max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=slow),
    )
