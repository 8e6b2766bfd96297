"""What an operator decides about jobs, as settings of whoever accepts one: API and worker alike."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from domain.jobs import DEFAULT_TRIAL_SPEND_USD, MAX_TRIAL_SPEND_USD
from domain.models import SCRIPTED
from domain.planning import JobRules
from store.settings import StoreSettings


class JobSettings(StoreSettings):
    """`EVOLVE_*`; the same values for every process of an installation."""

    max_trial_spend_usd: float = Field(
        default=DEFAULT_TRIAL_SPEND_USD,
        gt=0,
        le=MAX_TRIAL_SPEND_USD,
        description="Spend cap of a trial attempt where the job names none.",
    )
    scripted_upstream: Path | None = Field(
        default=None,
        description="Directory of the scripts that answer as models `scripted/<name>`, for tests and demos. "
        "Unset: there are none.",
    )

    def job_rules(self) -> JobRules:
        """As planning takes them."""
        return JobRules(
            default_trial_spend_usd=self.max_trial_spend_usd,
            upstreams=frozenset() if self.scripted_upstream is None else frozenset({SCRIPTED}),
        )
