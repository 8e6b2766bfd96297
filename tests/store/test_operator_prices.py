"""Prices that the operator states."""

from __future__ import annotations

from domain.prices import LongPromptRates, Rates, ServiceRates, price_book
from store.database import Database
from store.prices import current_prices, operator_prices, set_price

CHEAP = ServiceRates(rates=Rates(input=1, output=2))


async def test_a_stated_price_stands_until_it_is_taken_back(db: Database) -> None:
    packaged = price_book().price("zai", "glm-5.3")
    first = await set_price(db, "zai", "glm-5.3", CHEAP)
    book = await current_prices(db)
    stated = book.price("zai", "glm-5.3")
    assert stated is not None
    assert (stated.rates, stated.version) == (CHEAP.rates, first)
    await set_price(db, "zai", "glm-5.3", None)
    assert (await current_prices(db)).price("zai", "glm-5.3") == packaged
    assert await operator_prices(db) == []


async def test_each_statement_is_a_version_of_its_own(db: Database) -> None:
    long = LongPromptRates(above_prompt_tokens=1000, input=3, output=4, cached_input=1)
    tiered = ServiceRates(rates=CHEAP.rates, long_prompts=(long,))
    versions = [await set_price(db, "openrouter", "a/b", price) for price in (CHEAP, tiered)]
    (price,) = await operator_prices(db)
    assert (price.version, price.long_prompts) == (versions[1], (long,))
    assert len(set(versions)) == 2
