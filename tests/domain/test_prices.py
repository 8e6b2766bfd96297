"""What calls cost, to the nano-dollar. The expected amounts were computed by hand from published prices."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import from_json

from domain import prices
from domain.models import route_of
from domain.prices import LongPromptRates, ModelPrice, Rates, cost_nanos, price_book, worst_case_nanos
from domain.rosters import ROSTERS
from domain.usage import CallUsage

# Without a price in the map of the pinned litellm, as all of OpenRouter's: an operator states one, or calls
# of them are refused.
UNPRICED = {"glm-5.3-flashx", "glm-5.3-prime", "kimi-k3-raptor", "qwen3.8-max-prime"}


def priced(provider: str, model: str) -> ModelPrice:
    price = price_book().price(provider, model)
    assert price is not None
    return price


def usage(
    fresh: int = 0, cached: int = 0, write_5m: int = 0, write_1h: int = 0, out: int = 0,
    reasoning: int | None = None,
) -> CallUsage:  # fmt: skip
    return CallUsage(
        input_tokens=fresh, cached_input_tokens=cached, cache_write_5m_tokens=write_5m,
        cache_write_1h_tokens=write_1h, output_tokens=out, reasoning_tokens=reasoning,
    )  # fmt: skip


CASES = [
    # $4 in, $0.20 cached, $5 and $8 written, $20 out: 4.0 + 10.0 + 10.0 + 2.4 + 10.0 million nano-dollars
    ("anthropic", "claude-opus-5-5", usage(1000, 50_000, 2000, 300, out=500, reasoning=200), 36_400_000),
    # $2, $0.20, $12; reasoning is output: 0.8 + 0.12 + 1.2
    ("openai", "gpt-5.6-terra", usage(400, 600, out=100, reasoning=64), 2_120_000),
    # the last prompt at short prices: 272,000 × $0.20 + 10 × $12
    ("openai", "gpt-5.6-terra", usage(cached=272_000, out=10), 54_520_000),
    # one token more, and the whole call is at $4, $0.40 and $18
    ("openai", "gpt-5.6-terra", usage(1, 272_000, out=10), 108_984_000),
    # $2.50 for what it writes to its cache, $5 where that lives longer
    ("openai", "gpt-5.6-terra", usage(write_5m=1000, write_1h=100), 3_000_000),
    # $1.25 and $10, beyond 200,000 tokens $2.50 and $15
    ("gemini", "gemini-2.5-pro", usage(200_000, out=100), 251_000_000),
    ("gemini", "gemini-2.5-pro", usage(200_001, out=100), 501_502_500),
    # $0.125 and $0.25 cached
    ("gemini", "gemini-2.5-pro", usage(0, 200_000), 25_000_000),
    ("gemini", "gemini-2.5-pro", usage(1, 200_000), 50_002_500),
    # three ranges, each of which holds its end: $1.20 and $6, $2.40 and $12, $3 and $15
    ("dashscope", "qwen3-max", usage(32_000, out=10), 38_460_000),
    ("dashscope", "qwen3-max", usage(32_001, out=10), 76_922_400),
    ("dashscope", "qwen3-max", usage(128_000, out=10), 307_320_000),
    ("dashscope", "qwen3-max", usage(128_001, out=10), 384_153_000),
    # cached in the second range: 30,000 × $1.80 + 10,000 × $0.18 + 100 × $9
    ("dashscope", "qwen3-coder-plus", usage(30_000, 10_000, out=100), 56_700_000),
    # $0.40, $1.20 out, $4 of it reasoning: 40,000 + 20 × 1200 + 30 × 4000
    ("dashscope", "qwen-plus-2025-04-28", usage(100, out=50, reasoning=30), 184_000),
    # nobody says how much of it was reasoning: all at the dearer
    ("dashscope", "qwen-plus-2025-04-28", usage(100, out=50), 240_000),
    # beyond 100,000 tokens five times as dear, in all its parts
    ("anthropic", "claude-haiku-5-5", usage(100_000, out=10), 10_005_000),
    ("anthropic", "claude-haiku-5-5", usage(99_000, 1000, 1, 1, out=10), 49_576_625),
    # a cache price that the map gives as 0 is not known: the input's, $1.40
    ("zai", "glm-5.3", usage(cached=1000, write_5m=10), 274_000),
    ("moonshot", "kimi-k3", usage(10, 100, out=1), 75_000),
    ("openai", "text-embedding-3-small", usage(7), 140),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "model", "used", "nanos"), CASES)
def test_a_call_costs_exactly(provider: str, model: str, used: CallUsage, nanos: int) -> None:
    assert cost_nanos(priced(provider, model), used) == nanos


def test_a_call_is_rounded_once_and_up() -> None:
    third_of_a_nano = Rates(input=333_333, output=333_333)
    price = ModelPrice(provider="p", model="m", version="v", rates=third_of_a_nano)
    assert cost_nanos(price, usage(1)) == 1
    assert cost_nanos(price, usage(2, out=1)) == 1
    assert cost_nanos(price, usage(3, out=1)) == 2
    assert cost_nanos(price, usage()) == 0


def test_a_service_tier_has_its_own_price() -> None:
    price = priced("openai", "gpt-6.1-sol")
    priority, flex = price.of_service("priority"), price.of_service("flex")
    assert priority is not None
    assert flex is not None
    used = usage(1000, out=100)
    assert [cost_nanos(p, used) for p in (flex, price, priority)] == [1_500_000, 3_000_000, 6_000_000]
    assert price.of_service("auto") is price.of_service(None) is price
    assert price.of_service("scale") is None


def test_a_service_without_a_price_of_long_prompts_is_never_cheaper_there() -> None:
    for model in price_book().models("openai"):
        price = priced("openai", model)
        priority = price.of_service("priority")
        if priority is not None:
            assert cost_nanos(priority, usage(500_000)) >= cost_nanos(price, usage(500_000)), model


def test_what_is_not_priced_is_unknown() -> None:
    assert price_book().price("openai", "gpt-nobody-knows") is None
    # the map says 0 or nothing: unknown too
    for provider, model in (
        ("zai", "glm-4.7-flash"),
        ("gemini", "gemma-3-27b-it"),
        ("fireworks", "accounts/fireworks/routers/auto"),
        ("dashscope", "qwen3-30b-a3b"),
    ):
        assert price_book().price(provider, model) is None, model
    with pytest.raises(ValidationError):
        Rates(input=0, output=1)


def test_every_model_of_the_rosters_is_priced_but_those_that_nobody_prices() -> None:
    for roster in ROSTERS.values():
        for model in roster.models:
            route = route_of(model.model_id)
            if route and route.provider != "openrouter" and route.upstream_model not in UNPRICED:
                assert price_book().price(route.provider, route.upstream_model), model.alias


def test_a_book_can_be_extended_and_says_so() -> None:
    rates = Rates(input=5, output=7)
    mine = ModelPrice(provider="openai", model="gpt-6.1-sol", version="operator/1", rates=rates)
    book = price_book().extended([mine])
    assert book.price("openai", "gpt-6.1-sol") == mine
    assert book.price("zai", "glm-5.3") == price_book().price("zai", "glm-5.3")
    assert book.version != price_book().version
    assert price_book().price("openai", "gpt-6.1-sol") != mine


def test_an_edited_book_is_refused() -> None:
    document = from_json((prices.files("domain") / prices.BOOK_FILE).read_bytes())
    edited = copy.deepcopy(document)
    edited["prices"]["zai"]["glm-5.3"]["rates"]["input"] = 1
    prices.PriceBook.from_document(document)
    with pytest.raises(ValueError, match="was it edited"):
        prices.PriceBook.from_document(edited)


TOKENS = st.integers(min_value=0, max_value=400_000)
RATE = st.integers(min_value=1, max_value=10**11)
MAYBE = st.none() | RATE


def rates(**more: object) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(
        {"input": RATE, "output": RATE, "cached_input": MAYBE, "cache_write_5m": MAYBE,
         "cache_write_1h": MAYBE, "reasoning": MAYBE}
    )  # fmt: skip


@given(
    base=rates(), long=rates(), above=st.integers(1, 300_000), parts=st.tuples(*[TOKENS] * 5),
    reasoning=st.none() | TOKENS, room=st.tuples(TOKENS, TOKENS),
)  # fmt: skip
def test_the_worst_case_is_never_below_the_cost(base, long, above, parts, reasoning, room) -> None:
    used = usage(*parts[:4], out=parts[4], reasoning=reasoning)
    tier = LongPromptRates(above_prompt_tokens=above, **long)
    price = ModelPrice(provider="p", model="m", version="v", rates=Rates(**base), long_prompts=(tier,))
    worst = worst_case_nanos(price, used.prompt_tokens + room[0], used.output_tokens + room[1])
    assert cost_nanos(price, used) <= worst


def test_the_worst_case_of_a_prompt_below_the_threshold_is_at_its_rates() -> None:
    price = priced("gemini", "gemini-2.5-pro")
    assert worst_case_nanos(price, 200_000, 100) == 251_000_000
    assert worst_case_nanos(price, 200_001, 100) == 501_502_500
