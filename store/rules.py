"""What an operator decides about jobs and models, as settings of API, worker and gateway alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from domain.jobs import DEFAULT_TRIAL_SPEND_USD, MAX_TRIAL_SPEND_USD
from domain.models import MODEL_PROVIDERS, SCRIPTED
from domain.planning import JobRules
from store.settings import StoreSettings


class UpstreamSettings(StoreSettings):
    """Which servers of models there are beside the known providers; the gateway's too."""

    upstreams: str = Field(
        default="",
        description="OpenAI-compatible servers of your own, a JSON object: name to base URL, or to "
        "`base_url`, `speaks` and `auth`. A job names their models `<name>/<model>`.",
    )
    scripted_upstream: Path | None = Field(
        default=None,
        description="Directory of the scripts that answer as models `scripted/<name>`, for tests and demos. "
        "Unset: there are none.",
    )

    @field_validator("upstreams")
    @classmethod
    def _is_object(cls, value: str) -> str:
        document: Any = json.loads(value) if value.strip() else {}
        if not isinstance(document, dict):
            raise ValueError("not a JSON object of upstreams by name")
        return value

    def served_names(self) -> frozenset[str]:
        """The operator's own upstreams, with `scripted` where it is enabled."""
        declared = set(json.loads(self.upstreams)) if self.upstreams.strip() else set[str]()
        scripted = set[str]() if self.scripted_upstream is None else {SCRIPTED}
        # An entry of a known provider only moves its URL.
        return frozenset((declared - set(MODEL_PROVIDERS)) | scripted)


class JobSettings(UpstreamSettings):
    """`EVOLVE_*`; the same values for every process of an installation."""

    max_trial_spend_usd: float = Field(
        default=DEFAULT_TRIAL_SPEND_USD,
        gt=0,
        le=MAX_TRIAL_SPEND_USD,
        description="Spend cap of a trial attempt where the job names none.",
    )

    def job_rules(self) -> JobRules:
        """As planning takes them."""
        return JobRules(default_trial_spend_usd=self.max_trial_spend_usd, upstreams=self.served_names())
