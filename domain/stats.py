"""A job's statistics, kept by each settle and never summed over trials on a read (contract §3.6, §6.4).

Three materialised parts: the tally of trials by status, `JobTotals` of the whole job, and one
`GroupSums` for each entry of `stats.evals`. `settle` adds an outcome, `unsettle` takes it back when the
trial is retried. Lists of trial ids are not kept: the store reads them from its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from domain.money import nanos_of_usd, usd_of_nanos
from domain.vocabulary import SpendSource, TrialStatus

_PENDING = TrialStatus.QUEUED
_RUNNING = (TrialStatus.RUNNING, TrialStatus.SCORING)


Lane = Literal["agent", "judge"]
"""Who spends in an attempt."""


class TokenCounts(BaseModel):
    """Tokens of one lane; input includes cache; None is unrecorded."""

    model_config = ConfigDict(frozen=True)

    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None


class LaneReading(BaseModel):
    """What one lane of an attempt (its agent, its judge) came to. `cost_nanos` is the measured part."""

    model_config = ConfigDict(frozen=True)

    tokens: TokenCounts
    cost_nanos: int
    source: SpendSource

    @classmethod
    def of_wire(cls, members: Mapping[str, Any], source: str) -> LaneReading:
        """What `wire` was given, out of a document that may hold more."""
        return cls(
            tokens=TokenCounts(**{name: members[name] for name in TokenCounts.model_fields}),
            cost_nanos=nanos_of_usd(members["cost_usd"]),
            source=SpendSource(source),
        )

    def wire(self) -> dict[str, Any]:
        """The tokens and the cost, as AgentResult and JudgeResult of contract 3.8 have them."""
        return {**self.tokens.model_dump(), "cost_usd": usd_of_nanos(self.cost_nanos)}


class TrialOutcome(BaseModel):
    """What a settle says about one attempt number.

    `rewards` is the full reward map, `reward` its primary value (contract §6.4). A lane that ran has a
    spend source: `assumed_cap` says that its cost was never measured.
    """

    model_config = ConfigDict(frozen=True)

    status: TrialStatus
    reward: float | None = None
    rewards: dict[str, float] | None = None
    has_exception: bool = False
    tokens: TokenCounts = TokenCounts()
    judge_tokens: TokenCounts = TokenCounts()
    cost_nanos: int | None = None
    judge_cost_nanos: int | None = None
    gpu_cost_nanos: int | None = None
    spend_source: SpendSource | None = None
    judge_spend_source: SpendSource | None = None

    @property
    def lanes(self) -> dict[Lane, LaneReading]:
        """Those that ran."""
        lanes: dict[Lane, LaneReading] = {}
        if self.cost_nanos is not None and self.spend_source is not None:
            lanes["agent"] = LaneReading(
                tokens=self.tokens, cost_nanos=self.cost_nanos, source=self.spend_source
            )
        if self.judge_cost_nanos is not None and self.judge_spend_source is not None:
            lanes["judge"] = LaneReading(
                tokens=self.judge_tokens, cost_nanos=self.judge_cost_nanos, source=self.judge_spend_source
            )
        return lanes


class JobTotals(BaseModel):
    """The sums of a job. Money and tokens are None until something settled."""

    model_config = ConfigDict(frozen=True)

    n_errored_trials: int = 0
    n_retries: int = 0
    n_input_tokens: int | None = None
    n_cache_tokens: int | None = None
    n_output_tokens: int | None = None
    cost_nanos: int | None = None
    judge_cost_nanos: int | None = None
    gpu_cost_nanos: int | None = None
    n_unmeasured_trials: int = 0
    n_unmeasured_judge_trials: int = 0

    def settle(self, outcome: TrialOutcome) -> JobTotals:
        """With one more settled attempt number; its spend stays even if it is retried later."""
        judge = outcome.judge_cost_nanos or 0
        return JobTotals(
            n_errored_trials=self.n_errored_trials + outcome.has_exception,
            n_retries=self.n_retries,
            n_input_tokens=_plus(self.n_input_tokens, outcome, "n_input_tokens"),
            n_cache_tokens=_plus(self.n_cache_tokens, outcome, "n_cache_tokens"),
            n_output_tokens=_plus(self.n_output_tokens, outcome, "n_output_tokens"),
            cost_nanos=(self.cost_nanos or 0) + (outcome.cost_nanos or 0) + judge,
            judge_cost_nanos=(self.judge_cost_nanos or 0) + judge,
            gpu_cost_nanos=_sum((self.gpu_cost_nanos, outcome.gpu_cost_nanos)),
            n_unmeasured_trials=self.n_unmeasured_trials + _is_unmeasured(outcome.spend_source),
            n_unmeasured_judge_trials=(
                self.n_unmeasured_judge_trials + _is_unmeasured(outcome.judge_spend_source)
            ),
        )

    def refine(
        self, lane: Lane, before: LaneReading, after: LaneReading, *, is_retired: bool = False
    ) -> JobTotals:
        """With what the meter found of a lane after the settle: a call under way then was measured since.

        An attempt that a retry retired is not counted as unmeasured any more, whatever it was.
        """
        gained = after.cost_nanos - before.cost_nanos
        measured = 0 if is_retired else _is_unmeasured(after.source) - _is_unmeasured(before.source)
        is_judge = lane == "judge"
        return self.model_copy(
            update={
                "cost_nanos": (self.cost_nanos or 0) + gained,
                "judge_cost_nanos": _sum((self.judge_cost_nanos, gained if is_judge else None)),
                "n_unmeasured_trials": self.n_unmeasured_trials + (0 if is_judge else measured),
                "n_unmeasured_judge_trials": self.n_unmeasured_judge_trials + (measured if is_judge else 0),
                **{
                    name: (getattr(self, name) or 0)
                    + (getattr(after.tokens, name) or 0)
                    - (getattr(before.tokens, name) or 0)
                    for name in TokenCounts.model_fields
                },
            }
        )

    def unsettle(self, outcome: TrialOutcome) -> JobTotals:
        """With that attempt number retired by a retry: its counts go, its spend stays."""
        return self.model_copy(
            update={
                "n_errored_trials": self.n_errored_trials - outcome.has_exception,
                "n_retries": self.n_retries + 1,
                "n_unmeasured_trials": self.n_unmeasured_trials - _is_unmeasured(outcome.spend_source),
                "n_unmeasured_judge_trials": (
                    self.n_unmeasured_judge_trials - _is_unmeasured(outcome.judge_spend_source)
                ),
            }
        )

    def wire(self, by_status: Mapping[str, int], evals: Mapping[str, Any]) -> dict[str, Any]:
        """JobStats; `by_status` is the tally of all trials, `evals` the entries of `GroupSums.wire`."""
        pending = by_status.get(_PENDING, 0)
        running = sum(by_status.get(status, 0) for status in _RUNNING)
        return {
            "n_completed_trials": sum(by_status.values()) - pending - running,
            "n_errored_trials": self.n_errored_trials,
            "n_running_trials": running,
            "n_pending_trials": pending,
            "n_cancelled_trials": by_status.get(TrialStatus.CANCELLED, 0),
            "n_retries": self.n_retries,
            "evals": dict(evals),
            "n_input_tokens": self.n_input_tokens,
            "n_cache_tokens": self.n_cache_tokens,
            "n_output_tokens": self.n_output_tokens,
            "cost_usd": usd_of_nanos(self.cost_nanos),
            "gpu_cost_usd": usd_of_nanos(self.gpu_cost_nanos),
            "judge_cost_usd": usd_of_nanos(self.judge_cost_nanos),
            "reported_cost_usd": None,
            "n_unmeasured_trials": self.n_unmeasured_trials,
            "n_unmeasured_judge_trials": self.n_unmeasured_judge_trials,
            "analysis": None,
        }


class GroupSums(BaseModel):
    """The sums behind one entry of `stats.evals`.

    `n_total` counts planned trials. `is_binary` stays true while every settled trial has at most one
    reward, valued 0 or 1: what pass@k needs.
    """

    model_config = ConfigDict(frozen=True)

    n_total: int
    n_settled: int = 0
    n_rewarded: int = 0
    n_errors: int = 0
    reward_sum: float = 0.0
    is_binary: bool = True

    @property
    def is_complete(self) -> bool:
        """Every attempt of the group is settled."""
        return self.n_settled >= self.n_total

    @property
    def answers_pass_at_k(self) -> bool:
        """Complete and binary: the settle that makes it so computes `pass_at_k`."""
        return self.is_complete and self.is_binary

    def settle(self, outcome: TrialOutcome) -> GroupSums:
        """With one more settled trial."""
        return self._changed(outcome, +1, is_binary=self.is_binary and is_binary(outcome.rewards))

    def unsettle(self, outcome: TrialOutcome) -> GroupSums:
        """With that trial running again. Only a trial without rewards is retried."""
        return self._changed(outcome, -1, is_binary=self.is_binary)

    def _changed(self, outcome: TrialOutcome, sign: int, *, is_binary: bool) -> GroupSums:
        return GroupSums(
            n_total=self.n_total,
            n_settled=self.n_settled + sign,
            n_rewarded=self.n_rewarded + sign * (outcome.rewards is not None),
            n_errors=self.n_errors + sign * outcome.has_exception,
            reward_sum=self.reward_sum + sign * (outcome.reward or 0.0),
            is_binary=is_binary,
        )

    def wire(self, pass_at_k: Mapping[str, float]) -> dict[str, Any]:
        """AgentDatasetStats without the id lists; the mean's denominator is every trial of the group."""
        return {
            "n_trials": self.n_rewarded,
            "n_errors": self.n_errors,
            "metrics": [{"mean": self.reward_sum / self.n_total if self.n_total else 0.0}],
            "pass_at_k": dict(pass_at_k),
        }


def empty_tally(n_trials: int) -> dict[str, int]:
    """The tally of a new job: every status listed, all trials queued."""
    return {status.value: n_trials if status is _PENDING else 0 for status in TrialStatus}


def primary_reward(rewards: Mapping[str, float] | None) -> float | None:
    """The value of key `reward`, else of the only key, else None (contract §6.4)."""
    if not rewards:
        return None
    if "reward" in rewards:
        return rewards["reward"]
    return next(iter(rewards.values())) if len(rewards) == 1 else None


def is_binary(rewards: Mapping[str, float] | None) -> bool:
    """At most one reward, valued 0 or 1."""
    if not rewards:
        return True
    return len(rewards) == 1 and next(iter(rewards.values())) in (0, 1)


def pass_at_k(tasks: Sequence[tuple[int, int]]) -> dict[str, float]:
    """pass@k of a complete binary group from (attempts, successes) of each task.

    A trial without a reward is an attempt that failed. k runs over powers of two and multiples of five
    from 2 up to the smallest attempt count; the value is the mean over tasks of Harbor's unbiased
    estimator. `{}` when no k is eligible.
    """
    if not tasks:
        return {}
    most = min(attempts for attempts, _ in tasks)
    return {
        str(k): sum(_chance(attempts, successes, k) for attempts, successes in tasks) / len(tasks)
        for k in _eligible_ks(most)
    }


def rollup_mean(rewards: Iterable[float | None]) -> float | None:
    """A task's mean over its SCORED trials; a null reward counts 0; None when none is scored."""
    values = [0.0 if reward is None else reward for reward in rewards]
    return sum(values) / len(values) if values else None


def _eligible_ks(most: int) -> list[int]:
    powers = {1 << exponent for exponent in range(1, most.bit_length())}
    fives = set(range(5, most + 1, 5))
    return sorted(k for k in powers | fives if 2 <= k <= most)


def _chance(attempts: int, successes: int, k: int) -> float:
    if attempts - successes < k:
        return 1.0
    return 1.0 - prod((attempts - successes - i) / (attempts - i) for i in range(k))


def _plus(total: int | None, outcome: TrialOutcome, name: str) -> int | None:
    agent: int | None = getattr(outcome.tokens, name)
    judge: int | None = getattr(outcome.judge_tokens, name)
    return _sum((total, agent, judge))


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _is_unmeasured(source: SpendSource | None) -> bool:
    return source is SpendSource.ASSUMED_CAP
