"""The packaged book is what the pinned litellm's map gives."""

from __future__ import annotations

import pytest

from gateway import make_price_book
from gateway.make_price_book import read_map, rendered


def test_the_book_is_the_map_of_the_pinned_version() -> None:
    assert make_price_book.BOOK.read_text() == rendered(read_map()), "python -m gateway.make_price_book"


def test_a_price_that_is_no_whole_number_of_nanos_is_refused() -> None:
    entry = {
        "litellm_provider": "zai",
        "mode": "chat",
        "input_cost_per_token": 1e-16,
        "output_cost_per_token": 1,
    }
    with pytest.raises(ValueError, match="whole number"):
        rendered(({"zai/odd": entry}, {}))
