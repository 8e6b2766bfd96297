"""The agents a job may name: what each runs with and what it takes (contract §3.1, §9).

A harness that cannot run here is listed with `runnable` false and the reason, so that a client can show
it and a job that names it is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from domain.roster_data import HARNESS_ROWS, MODEL_IDS, HarnessRow
from domain.vocabulary import AGENT_PRESETS, REASONING_EFFORTS, EffortSupport

REGISTERED_STDOUT_FILE = "stdout.log"


@dataclass(frozen=True)
class ModelOption:
    """A model as a harness knows it; both alias and id are accepted as `model_name`."""

    alias: str
    model_id: str
    reasoning_efforts: tuple[str, ...]
    default_reasoning_effort: str | None


@dataclass(frozen=True)
class Roster:
    """One agent. `needs_model` is false for `oracle` and `nop`, which call none and spend nothing."""

    name: str
    needs_model: bool = True
    effort_support: EffortSupport = "none"
    is_runnable: bool = True
    reason: str | None = None
    is_version_pinnable: bool = False
    default_model: str | None = None
    default_reasoning_effort: str | None = None
    supports_config: bool = False
    presets: tuple[str, ...] = ()
    stdout_file: str = ""
    """The file of a trial folder's `agent/` that holds its stdout, as Harbor names it (contract §8.2)."""
    models: tuple[ModelOption, ...] = ()
    takes_any_model: bool = False
    """True for registered agents: whatever the gateway can route."""

    @property
    def efforts(self) -> tuple[str, ...]:
        """Every effort that some model of it takes: what a model that no roster lists may be asked for."""
        taken = {effort for model in self.models for effort in model.reasoning_efforts}
        return tuple(effort for effort in REASONING_EFFORTS if effort in taken)

    def option(self, model_name: str) -> ModelOption | None:
        """The model of an alias or an id."""
        return next((model for model in self.models if model_name in (model.alias, model.model_id)), None)

    def near_models(self, model_name: str) -> list[str]:
        """Aliases that somebody who wrote `model_name` may have meant, the likeliest first."""
        names = {name: model.alias for model in self.models for name in (model.alias, model.model_id)}
        found = get_close_matches(model_name, names, n=5, cutoff=0.5)
        return list(dict.fromkeys(names[name] for name in found))


def registered_roster(name: str) -> Roster:
    """What an agent of a user's own takes: a model, and nothing else (contract §6.1, §6.10)."""
    return Roster(name, stdout_file=REGISTERED_STDOUT_FILE, takes_any_model=True)


def roster_of(name: str) -> Roster:
    """The built-in of that name, else the roster of a registered agent: records may name one that is gone."""
    return ROSTERS.get(name) or registered_roster(name)


def _harness(row: HarnessRow) -> Roster:
    return Roster(
        name=row.name,
        effort_support=row.effort_support,
        is_runnable=row.reason is None,
        reason=row.reason,
        is_version_pinnable=True,
        default_model=row.default_model,
        default_reasoning_effort=row.default_effort,
        supports_config=row.has_settings,
        presets=AGENT_PRESETS if row.has_settings else (),
        stdout_file=row.stdout_file or f"{row.name}.txt",
        models=tuple(
            ModelOption(
                alias,
                MODEL_IDS.get((row.name, alias), alias),
                efforts,
                _default_effort(efforts, row.default_effort),
            )
            for aliases, efforts in row.models
            for alias in aliases
        ),
    )


def _default_effort(efforts: Sequence[str], default: str | None) -> str | None:
    if not efforts:
        return None
    return default if default in efforts else efforts[-1]


def _modelless(name: str) -> Roster:
    return Roster(name, needs_model=False, stdout_file=f"{name}.txt")


ROSTERS: Mapping[str, Roster] = MappingProxyType(
    {
        roster.name: roster
        for roster in (_modelless("oracle"), _modelless("nop"), *map(_harness, HARNESS_ROWS))
    }
)
