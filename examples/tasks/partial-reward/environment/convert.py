"""Conversions. Each raises ValueError for input that it cannot take."""


def to_roman(number):
    """1 to 3999 as a Roman numeral: 1994 is "MCMXCIV"."""
    raise NotImplementedError


def to_seconds(duration):
    """A duration like "1h30m", "2d", "45s" or "1d2h3m4s" in seconds.

    Units are d, h, m and s, each at most once and in this order; numbers are whole and not negative.
    """
    raise NotImplementedError


def to_size(size_bytes):
    """Bytes for people: below 1024 as "512 B", else with one decimal in KiB, MiB, GiB or TiB: 1536 is "1.5 KiB".

    The unit is the smallest in which the printed number is below 1024.0, at most TiB: 1048575 is "1.0 MiB".
    """
    raise NotImplementedError


def to_columns(text):
    """Spreadsheet columns: "A" is 1, "Z" is 26, "AA" is 27, "XFD" is 16384. Only the letters A to Z are taken."""
    raise NotImplementedError
