"""The keys of `stats.evals`: one for each arm and dataset of a job (contract §6.4).

`agent[__model][__effort]__dataset`, the dataset always last. Arms that this cannot tell apart get more
segments before the dataset, only those in which they differ: the version pin, the preset, a digest of the
settings, a digest of the skills. A name may itself hold `__`, so that what is still equal is numbered by
its arm: two arms never share a key.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from pydantic_core import to_json

from domain.arms import AgentArm
from domain.requests import sorted_keys

_DIGEST_CHARS = 8


def evals_keys(arms: Sequence[AgentArm], datasets: Sequence[str]) -> Mapping[tuple[int, str], str]:
    """(arm's position, dataset) → its key; all different."""
    keys: dict[tuple[int, str], str] = {}
    taken: set[str] = set()
    segments = _segments(arms)
    for dataset in datasets:
        for position in range(len(arms)):
            spellings = _spellings(segments[position], position, dataset)
            key = next(key for key in spellings if key not in taken)
            taken.add(key)
            keys[position, dataset] = key
    return keys


def _spellings(segments: tuple[str, ...], position: int, dataset: str) -> Iterator[str]:
    """The key as it should be, then numbered ones without end."""
    yield "__".join((*segments, dataset))
    for n in count(1):
        yield "__".join((*segments, f"arm-{position + 1}" + f"-{n}" * (n > 1), dataset))


def _segments(arms: Sequence[AgentArm]) -> list[tuple[str, ...]]:
    """Each arm's, without the dataset."""
    alike: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, arm in enumerate(arms):
        alike[_base(arm)].append(position)
    segments: list[tuple[str, ...]] = [()] * len(arms)
    for base, positions in alike.items():
        told = [[tell(arms[position]) for position in positions] for tell in _TELLING]
        differing = [values for values in told if len(set(values)) > 1]
        for place, position in enumerate(positions):
            extra = (values[place] for values in differing)
            segments[position] = (*base, *(value for value in extra if value is not None))
    return segments


def _base(arm: AgentArm) -> tuple[str, ...]:
    return tuple(part for part in (arm.name, arm.model_name, arm.reasoning_effort) if part is not None)


def _config(arm: AgentArm) -> str | None:
    return f"config-{_digest(arm.kwargs)}" if arm.kwargs else None


def _skills(arm: AgentArm) -> str | None:
    return f"skills-{_digest(arm.skills)}" if arm.skills else None


def _digest(value: Any) -> str:
    return hashlib.sha256(to_json(sorted_keys(value))).hexdigest()[:_DIGEST_CHARS]


_TELLING: tuple[Callable[[AgentArm], str | None], ...] = (
    lambda arm: arm.version,
    lambda arm: arm.preset,
    _config,
    _skills,
)
