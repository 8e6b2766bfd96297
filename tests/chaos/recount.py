"""A job's statistics counted anew from its trials, without the product's own sums."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from domain.stats import pass_at_k

Rows = list[dict[str, Any]]


def totals_of(trials: Rows) -> dict[str, Any]:
    """The members of JobTotals that count trials and retries."""
    return {
        "n_errored_trials": sum(trial["result"].get("exception_info") is not None for trial in trials),
        "n_retries": sum(trial["n_retries"] for trial in trials),
        "n_unmeasured_trials": sum(trial["result"].get("spend_source") == "assumed_cap" for trial in trials),
    }


def group_sums(trials: Rows) -> dict[str, Any]:
    """A job_groups row of these trials, which have all ended."""
    rewards = [(trial["result"].get("verifier_result") or {}).get("rewards") for trial in trials]
    is_binary = all(each is None or (len(each) == 1 and _only(each) in (0, 1)) for each in rewards)
    return {
        "n_total": len(trials),
        "n_settled": len(trials),
        "n_rewarded": sum(each is not None for each in rewards),
        "n_errors": sum(trial["result"].get("exception_info") is not None for trial in trials),
        "reward_sum": sum(trial["reward"] or 0.0 for trial in trials),
        "is_binary": is_binary,
        "pass_at_k": pass_at_k(_attempts(trials)) if is_binary else {},
    }


def _only(rewards: dict[str, float]) -> float:
    return next(iter(rewards.values()))


def _attempts(trials: Rows) -> list[tuple[int, int]]:
    tasks: dict[str, list[int]] = defaultdict(list)
    for trial in trials:
        tasks[trial["task_name"]].append(trial["reward"] == 1)
    return [(len(solved), sum(solved)) for solved in tasks.values()]
