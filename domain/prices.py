"""What a call costs: the price book, and the arithmetic in whole nano-dollars.

Rates are integers, nano-dollars per million tokens, so that every published price is exact: $0.075 per
million is 75,000,000. A call's parts are summed exactly and rounded once, up to a whole nano-dollar. What
the book does not price has no price: never 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, PositiveInt
from pydantic_core import from_json

from domain.usage import CallUsage

TOKENS_PER_RATE = 1_000_000
BOOK_FILE = "price_book.json"
# How the providers spell the service that nobody asked for.
STANDARD_SERVICES = frozenset({None, "", "auto", "default", "standard", "standard_only"})


class Rates(BaseModel):
    """Nano-dollars per million tokens.

    A cache price that is not published is the input's: providers then bill such tokens as ordinary input.
    `cache_write_1h` is the longer-lived of a provider's two kinds (OpenAI's lives up to 24 hours).
    `reasoning` is set where it differs from `output`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: PositiveInt
    output: PositiveInt
    cached_input: PositiveInt | None = None
    cache_write_5m: PositiveInt | None = None
    cache_write_1h: PositiveInt | None = None
    reasoning: PositiveInt | None = None

    @property
    def _write_5m(self) -> int:
        return self.cache_write_5m or self.input

    @property
    def _write_1h(self) -> int:
        return self.cache_write_1h or self._write_5m

    @property
    def dearest_input(self) -> int:
        """The most that a token of the prompt can cost."""
        return max(self.input, self.cached_input or 0, self._write_5m, self._write_1h)

    @property
    def dearest_output(self) -> int:
        """The most that a token of the answer can cost."""
        return max(self.output, self.reasoning or 0)

    def parts_of(self, usage: CallUsage) -> int:
        """The usage's cost in nano-dollars × a million: exact.

        Where reasoning has a price of its own and the provider does not say how much of the output it
        was, all output is priced at the dearer of the two.
        """
        prompt = (
            usage.input_tokens * self.input
            + usage.cached_input_tokens * (self.cached_input or self.input)
            + usage.cache_write_5m_tokens * self._write_5m
            + usage.cache_write_1h_tokens * self._write_1h
        )
        if self.reasoning is None:
            return prompt + usage.output_tokens * self.output
        if usage.reasoning_tokens is None:
            return prompt + usage.output_tokens * self.dearest_output
        reasoning = min(usage.reasoning_tokens, usage.output_tokens)
        return prompt + (usage.output_tokens - reasoning) * self.output + reasoning * self.reasoning


class LongPromptRates(Rates):
    """The rates of the whole call when its prompt has more tokens than `above_prompt_tokens`."""

    above_prompt_tokens: PositiveInt


class ServiceRates(BaseModel):
    """The rates of one service: those of short prompts, then of longer ones by rising threshold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rates: Rates
    long_prompts: tuple[LongPromptRates, ...] = ()

    def rates_for(self, prompt_tokens: int) -> Rates:
        """The rates that a prompt of this length is billed at."""
        longer = [tier for tier in self.long_prompts if prompt_tokens > tier.above_prompt_tokens]
        return longer[-1] if longer else self.rates

    def reachable(self, max_prompt_tokens: int) -> Iterable[tuple[Rates, int]]:
        """Each rates that a prompt of at most this length may fall under, with the longest such prompt."""
        tiers = [(0, self.rates), *((tier.above_prompt_tokens, tier) for tier in self.long_prompts)]
        ends = [*(start for start, _ in tiers[1:]), max_prompt_tokens]
        for (start, rates), end in zip(tiers, ends, strict=True):
            if start == 0 or start < max_prompt_tokens:
                yield rates, min(end, max_prompt_tokens)


class ModelPrice(ServiceRates):
    """The price of one model of one provider.

    `version` names where it was read and is kept with each call: a book's hash, or `operator/<row>`.
    `services` are other service tiers by the provider's word (`flex`, `priority`). The limits are the
    model's own, None where they are not known.
    """

    provider: str
    model: str
    version: str
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    services: dict[str, ServiceRates] = {}

    def of_service(self, service: str | None) -> ModelPrice | None:
        """The price in a service tier, as request or response names it; None when it is not known."""
        if service in STANDARD_SERVICES:
            return self
        other = self.services.get(service or "")
        if other is None:
            return None
        return self.model_copy(
            update={"rates": other.rates, "long_prompts": other.long_prompts, "services": {}}
        )


class PriceBook:
    """Prices by provider and the model id that the provider itself uses."""

    def __init__(self, prices: Iterable[ModelPrice], version: str) -> None:
        self.version = version
        self._prices: Mapping[tuple[str, str], ModelPrice] = MappingProxyType(
            {(price.provider, price.model): price for price in prices}
        )

    def price(self, provider: str, upstream_model: str) -> ModelPrice | None:
        """None is unknown: a call of such a model is refused."""
        return self._prices.get((provider, upstream_model))

    def models(self, provider: str) -> tuple[str, ...]:
        """The model ids of a provider that have a price."""
        return tuple(sorted(model for name, model in self._prices if name == provider))

    def extended(self, prices: Iterable[ModelPrice]) -> PriceBook:
        """A book in which these stand beside the others, and instead of those of the same model."""
        added = tuple(prices)
        document = [self.version, *(price.model_dump(mode="json") for price in added)]
        return PriceBook((*self._prices.values(), *added), digest(document))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The book of a `price_book.json`. Raises `ValueError` when it is not what its version says."""
        version = digest(document["prices"])
        if version != document["version"]:
            raise ValueError(f"the price book's hash is {version}, not {document['version']}: was it edited?")
        return cls(
            (
                ModelPrice(provider=provider, model=model, version=version, **entry)
                for provider, models in document["prices"].items()
                for model, entry in models.items()
            ),
            version,
        )


def digest(document: Any) -> str:
    """SHA-256 of a JSON document, however its members are ordered or spaced."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


@lru_cache(maxsize=1)
def price_book() -> PriceBook:
    """The packaged book, read once."""
    return PriceBook.from_document(from_json(files("domain").joinpath(BOOK_FILE).read_bytes()))


def cost_nanos(price: ServiceRates, usage: CallUsage) -> int:
    """What a call cost. The length of its whole prompt, cached tokens included, decides the rates."""
    return _rounded_up(price.rates_for(usage.prompt_tokens).parts_of(usage))


def worst_case_nanos(price: ServiceRates, max_prompt_tokens: int, max_output_tokens: int) -> int:
    """The most that a call within these bounds can cost: never below `cost_nanos` of what it comes to."""
    return _rounded_up(
        max(
            prompt * rates.dearest_input + max_output_tokens * rates.dearest_output
            for rates, prompt in price.reachable(max_prompt_tokens)
        )
    )


def _rounded_up(parts: int) -> int:
    return -(-parts // TOKENS_PER_RATE)
