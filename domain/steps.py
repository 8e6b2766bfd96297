"""The rules of a multi-step trial: which step follows, and what the steps come to together (contract 6.8).

A step that ends without a result of its verifier ends the trial; so does one that scores below its
`min_reward`. What counts as a result is the rewards that a verifier left: no failure becomes a zero, and
only a metric that a verifier did not name counts as one in a mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from domain.stats import primary_reward
from domain.task_steps import MinReward

__all__ = ["RewardStrategy", "combined_rewards", "unmet_gate"]

RewardStrategy = Literal["mean", "final"]
Rewards = Mapping[str, float]


def unmet_gate(min_reward: MinReward | None, rewards: Rewards) -> str | None:
    """Why the trial goes no further after a step that scored `rewards`; None when the next step follows.

    A number gates the primary reward, a map each of its keys; what is not there does not pass.
    """
    if min_reward is None:
        return None
    if isinstance(min_reward, Mapping):
        found = {key: rewards.get(key) for key in min_reward}
        wanted = min_reward
    else:
        found, wanted = {"reward": primary_reward(dict(rewards))}, {"reward": min_reward}
    for key, least in wanted.items():
        value = found[key]
        if value is None:
            return f"{key} was not scored; it has to reach {least:g}"
        if value < least:
            return f"{key} {value:g} is below {least:g}"
    return None


def combined_rewards(strategy: RewardStrategy, steps: Sequence[Rewards | None]) -> dict[str, float] | None:
    """The rewards of a trial whose executed steps scored `steps` (None: no result); None without any.

    `mean` averages each metric over the steps that have a result, a metric that one did not name being 0
    there. `final` is the last executed step's.
    """
    if strategy == "final":
        last = steps[-1] if steps else None
        return dict(last) if last is not None else None
    scored = [rewards for rewards in steps if rewards is not None]
    if not scored:
        return None
    # In the order of their first mention, so that the same steps always give the same document.
    keys = dict.fromkeys(key for rewards in scored for key in rewards)
    return {key: sum(rewards.get(key, 0.0) for rewards in scored) / len(scored) for key in keys}
