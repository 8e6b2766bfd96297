"""Conversions. Each raises ValueError for input that it cannot take."""

import re

NUMERALS = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
    (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
]
DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?")


def to_roman(number):
    """1 to 3999 as a Roman numeral: 1994 is "MCMXCIV"."""
    if not 1 <= number <= 3999:
        raise ValueError(number)
    numeral = ""
    for value, letters in NUMERALS:
        numeral += letters * (number // value)
        number %= value
    return numeral


def to_seconds(duration):
    """A duration like "1h30m", "2d", "45s" or "1d2h3m4s" in seconds."""
    match = DURATION.fullmatch(duration)
    if not duration or not match:
        raise ValueError(duration)
    return sum(int(part or 0) * unit for part, unit in zip(match.groups(), (86400, 3600, 60, 1)))


def to_size(size_bytes):
    """Bytes for people: 1536 is "1.5 KiB"."""
    if size_bytes < 0:
        raise ValueError(size_bytes)
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if round(size, 1) < 1024:
            break
    return f"{size:.1f} {unit}"


def to_columns(text):
    """Spreadsheet columns: "A" is 1, "Z" is 26, "AA" is 27, "XFD" is 16384."""
    if not re.fullmatch("[A-Z]+", text):
        raise ValueError(text)
    number = 0
    for letter in text:
        number = number * 26 + ord(letter) - ord("A") + 1
    return number
