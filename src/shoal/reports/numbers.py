"""Numbers as people read them: four significant digits."""

from __future__ import annotations

from math import floor, isfinite, log10

DIGITS = 4
PLAIN = 1e-4, 1e12  # from, and below, which a number has no exponent


def significant(value: float) -> str:
    """Return a measured number as text with four significant digits.

    >>> significant(0.98346), significant(12.34567), significant(12345.6), significant(0.00001234)
    ('0.9835', '12.35', '12,350', '1.234e-05')
    >>> significant(9.99996), significant(0.5), significant(0.0), significant(float("nan"))
    ('10.00', '0.5000', '0', 'nan')
    """
    if not value or not isfinite(value):
        return f"{value:g}"
    value = float(f"{value:.{DIGITS - 1}e}")
    if not PLAIN[0] <= abs(value) < PLAIN[1]:
        return f"{value:.{DIGITS - 1}e}"
    return f"{value:,.{max(0, DIGITS - 1 - floor(log10(abs(value))))}f}"


def percent(value: float) -> str:
    """Return a share as a percentage.

    >>> percent(0.98346), percent(0.05), percent(0.0)
    ('98.35%', '5.000%', '0%')
    """
    return f"{significant(100 * value)}%"


def seconds(value: float) -> str:
    """Return a time as text, in seconds.

    >>> seconds(0.001234), seconds(3723.4)
    ('0.001234 s', '3,723 s')
    """
    return f"{significant(value)} s"


def decimal_bytes(count: float) -> str:
    """Return a number of bytes as text, in units of 1000.

    >>> decimal_bytes(12), decimal_bytes(12_345), decimal_bytes(999_999)
    ('12 B', '12.35 kB', '1.000 MB')
    """
    if count < 1000:
        return f"{count:.0f} B"
    shown = count
    for unit in ("kB", "MB", "GB", "TB"):
        shown /= 1000
        if float(f"{shown:.{DIGITS - 1}e}") < 1000 or unit == "TB":
            return f"{significant(shown)} {unit}"
    raise AssertionError("TB is the last unit")
