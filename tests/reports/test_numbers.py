"""Numbers with four significant digits, of any size."""

from random import Random

import pytest

from shoal.reports.numbers import decimal_bytes, percent, seconds, significant


def test_four_digits_say_a_number_to_half_a_thousandth():
    random = Random(0)
    for _ in range(2000):
        value = random.choice([-1, 1]) * 10 ** random.uniform(-12, 15)
        shown = significant(value)
        assert float(shown.replace(",", "")) == pytest.approx(value, rel=5.001e-4)
        digits = shown.partition("e")[0].replace(",", "").replace(".", "").lstrip("-0")
        assert len(digits.rstrip("0")) <= 4
        assert len(digits) >= 4


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (999.95, "1,000"),  # 999.95 is a little less in binary, and rounds to 1,000 at four digits
        (0.00099999, "0.001000"),
        (-2.5, "-2.500"),
        (3, "3.000"),
        (float("inf"), "inf"),
        (1e13, "1.000e+13"),
    ],
)
def test_numbers_at_the_ends(value, shown):
    assert significant(value) == shown


def test_units():
    assert (percent(1.0), percent(0.123456)) == ("100.0%", "12.35%")
    assert (seconds(0.0), seconds(59.99)) == ("0 s", "59.99 s")
    assert [decimal_bytes(n) for n in (0, 999, 1000, 999_949, 999_950, 5e9, 2.5e12, 2.5e15)] == [
        *("0 B", "999 B", "1.000 kB", "999.9 kB", "1.000 MB", "5.000 GB", "2.500 TB", "2,500 TB"),
    ]
