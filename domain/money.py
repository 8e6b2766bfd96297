"""Money: integer nano-dollars inside, US dollars as a JSON number on the wire. Unknown is None, never 0."""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import overload

NANOS_PER_USD = 1_000_000_000
# Sums of amounts up to this stay within a 64-bit integer.
MAX_NANOS = 10**9 * NANOS_PER_USD


def nanos_of_usd(usd: float) -> int:
    """The nearest nano-dollar of what a person wrote: 0.1 is exactly 100,000,000."""
    return int((Decimal(repr(usd)) * NANOS_PER_USD).to_integral_value(ROUND_HALF_EVEN))


def nanos_written(usd: str) -> int:
    """The nano-dollars of an amount in digits, exactly. Raises `ValueError` for what is no such amount."""
    try:
        nanos = Decimal(usd) * NANOS_PER_USD
    except InvalidOperation:
        raise ValueError(f"{usd!r} is not an amount of US dollars") from None
    if not nanos.is_finite() or nanos < 0 or nanos > MAX_NANOS or nanos != nanos.to_integral_value():
        raise ValueError(f"{usd!r} is not a whole number of nano-dollars from 0 to a billion dollars")
    return int(nanos)


@overload
def usd_of_nanos(nanos: int) -> float: ...
@overload
def usd_of_nanos(nanos: None) -> None: ...
def usd_of_nanos(nanos: int | None) -> float | None:
    """The wire's number; None stays None."""
    return None if nanos is None else nanos / NANOS_PER_USD
