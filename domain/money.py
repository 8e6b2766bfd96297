"""Money: integer nano-dollars inside, US dollars as a JSON number on the wire. Unknown is None, never 0."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from typing import overload

NANOS_PER_USD = 1_000_000_000


def nanos_of_usd(usd: float) -> int:
    """The nearest nano-dollar of what a person wrote: 0.1 is exactly 100,000,000."""
    return int((Decimal(repr(usd)) * NANOS_PER_USD).to_integral_value(ROUND_HALF_EVEN))


@overload
def usd_of_nanos(nanos: int) -> float: ...
@overload
def usd_of_nanos(nanos: None) -> None: ...
def usd_of_nanos(nanos: int | None) -> float | None:
    """The wire's number; None stays None."""
    return None if nanos is None else nanos / NANOS_PER_USD
