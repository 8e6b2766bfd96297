"""LLM judges: which credentials a verifier asks for in `[verifier.env]`, and what it gets (contract 6.8).

A whole-value template of one of the names below is met by the platform's gateway, never by a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from domain.tasks import EnvValue

__all__ = ["JUDGE_CAP_NANOS", "JUDGE_FAMILIES", "JudgeFamily", "judge_env", "judge_families", "needs_secret"]

JUDGE_CAP_NANOS = 5_000_000_000
"""Contract section 5: the judge's cap is the smaller of this and the agent's."""


@dataclass(frozen=True)
class JudgeFamily:
    """One vendor's models, as its clients are told of them. `base_path` is what they expect in the URL."""

    provider: str
    prefix: str
    base_path: str

    @property
    def key_name(self) -> str:
        return f"{self.prefix}_API_KEY"

    @property
    def url_names(self) -> tuple[str, str]:
        """`litellm` reads both, the vendor's own client the second."""
        return f"{self.prefix}_API_BASE", f"{self.prefix}_BASE_URL"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.key_name, *self.url_names)

    def values(self, gateway_url: str, key: str) -> dict[str, str]:
        """What each of its names is in a verifier; `gateway_url` is an origin."""
        return {self.key_name: key, **dict.fromkeys(self.url_names, f"{gateway_url}{self.base_path}")}


JUDGE_FAMILIES: Mapping[str, JudgeFamily] = MappingProxyType(
    {
        family.provider: family
        for family in (JudgeFamily("anthropic", "ANTHROPIC", ""), JudgeFamily("openai", "OPENAI", "/v1"))
    }
)


def judge_families(env: Mapping[str, EnvValue]) -> tuple[JudgeFamily, ...]:
    """The families whose credential a verifier's environment asks for."""
    asked = {value.variable for value in env.values()}
    return tuple(family for family in JUDGE_FAMILIES.values() if not asked.isdisjoint(family.names))


def judge_env(env: Mapping[str, EnvValue], gateway_url: str, key: str) -> dict[str, str]:
    """Credentials under the names that asked for them, and under the standard ones beside those.

    A standard name that the task declares as something else stays the task's.
    """
    given: dict[str, str] = {}
    for family in judge_families(env):
        given.update(family.values(gateway_url, key))
    declared = {name: given[each.variable] for name, each in env.items() if each.variable in given}
    return {**{name: value for name, value in given.items() if name not in env}, **declared}


def needs_secret(value: EnvValue) -> bool:
    """Whether a value of `[verifier.env]` is met by neither default nor gateway."""
    is_judge = any(value.variable in family.names for family in JUDGE_FAMILIES.values())
    return not value.is_satisfied and not is_judge
