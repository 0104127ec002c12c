"""The rule by which a value of a column becomes a key."""

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.apps.ctr.columns.keys import (
    NEGATIVE,
    ZERO,
    all_buckets,
    bounds_of,
    buckets,
    key,
    keys_of,
    meanings,
    number_of,
    text_of,
)
from shoal.apps.ctr.readers import hashed
from shoal.errors import InvalidValue

HOUR = timezone(timedelta(hours=1))
SAME = [  # the text by which all of these count
    ("true", [True, np.True_, "true", "True", "TRUE", " True "]),
    ("false", [False, np.False_, "false", "False", "FALSE"]),
    ("7", [7, 7.0, np.int8(7), np.uint64(7), np.float32(7), np.float16(7), "7", "7.0", "7.00", " 7",
           Decimal(7), Decimal("7.00"), np.str_("7")]),
    ("0", [0, 0.0, -0.0, "0", "-0", "0.0", "-0.0", Decimal("-0.00"), Decimal("0E+9")]),
    ("-3", [-3, -3.0, "-3", "-3.0"]),
    ("12345678", [12345678, 12345678.0, "1.2345678E7", "12345678.0"]),
    ("9223372036854775808", [2**63, 2.0**63, "9.223372036854776e+18", "9223372036854775808"]),
    ("100000000000000000000", [10**20, 1e20, "1e+20", np.float32(1e20), Decimal("1E+20")]),
    ("0.1", [0.1, np.float32(0.1), np.float16(0.1), "0.1", Decimal("0.10")]),
    ("0.00001", [1e-5, "1e-05", "1.0e-5", "0.00001", Decimal("0.00001")]),
    ("inf", [float("inf"), "inf"]),
    ("2026-01-31", [date(2026, 1, 31), datetime(2026, 1, 31), np.datetime64("2026-01-31"),
                    np.datetime64("2026-01-31T00:00:00.000000000"), "2026-01-31",
                    "2026-01-31 00:00:00", "2026-01-31T00:00:00.000", "2026-01-31 00:00"]),
    ("2026-01-31 12:30:00.5", [datetime(2026, 1, 31, 12, 30, 0, 500_000), "2026-01-31T12:30:00.50",
                               np.datetime64("2026-01-31T12:30:00.500000000")]),
    ("2026-01-31 11:30:00Z", [datetime(2026, 1, 31, 12, 30, tzinfo=HOUR), "2026-01-31 11:30:00Z",
                              datetime(2026, 1, 31, 11, 30, tzinfo=UTC), "2026-01-31T11:30Z",
                              "2026-01-31 12:30:00+01:00", "2026-01-31 12:30:00.000+0100",
                              "2026-01-31 11:30:00 UTC", "2026-01-31 12:30:00+01"]),
    ("12:30:00", [time(12, 30), "12:30:00", "12:30:00.000000"]),
    ("12:30:00.5", [time(12, 30, 0, 500_000), "12:30:00.500"]),
    ("é", ["é", "e\u0301", "\u00a0é\n"]),
]  # fmt: skip
THEMSELVES = ["007", "00", "+7", "1e5", "1.10", "10.10", "4.0.1", "-", "--7", "1.", ".5", "7.0a",
              "yes", "t", "tRUE", "0x1f", "1e+999", "2026-13-01 00:00:00", "0123456789 00:00:00",
              "2026-02-31 00:00:00+01:00", "2026-1-1", "24:00:00", "12:30", "2026", "٧",
              "١٢:٣٠:٠٠.0", "a b", "ß", "東京", "nAn", "N.A."]  # fmt: skip
MISSING = [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), np.timedelta64("NaT"),
           Decimal("NaN"), Decimal("sNaN"), "", "  ", "NA", "N/A", "<NA>", "NaN", "nan", "NaT",
           "null", "NULL", "None", "?", " nan\t"]  # fmt: skip


class NAType:
    """As that of pandas."""

    def __repr__(self):
        return "<NA>"

    def __eq__(self, other):
        return self

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


@pytest.mark.parametrize(("text", "values"), SAME, ids=[text for text, _ in SAME])
def test_values_that_are_the_same_have_one_text(text, values):
    assert [text_of(value) for value in values] == [text] * len(values)
    assert len({key("c", value) for value in values}) == 1


def test_different_values_have_different_keys():
    values = [values[0] for _, values in SAME] + THEMSELVES
    assert len({key("c", value) for value in values}) == len(values)
    assert key("c", 1) != key("c", True)
    assert key("c", "x") != key("d", "x")


@pytest.mark.parametrize("text", THEMSELVES)
def test_other_texts_are_themselves(text):
    assert text_of(text) == text


@pytest.mark.parametrize("value", [*MISSING, NAType()], ids=repr)
def test_what_is_missing_has_no_key(value):
    assert key("c", value) is None
    assert key("c", value, numeric=True) is None


def test_a_key_is_the_digest_of_the_column_and_the_text():
    for column, text in (("city", "São Paulo"), ("ci\u0301ty", "x"), ("", "x")):
        name = column.replace("i\u0301", "í")
        digest = blake2b(f"{name}\0{text}".encode(), digest_size=8).digest()
        assert key(column, text) == int.from_bytes(digest, "little")


def test_keys_of_ordinary_texts_stay():
    """They are in models that were trained before."""
    assert [key("city", "Oslo"), key("n", "7"), key("d", "2026-01-31")] == [
        322210507009639377, 16195647693379380309, 10786274012791847386]  # fmt: skip


@pytest.mark.parametrize("bits", [1, 20, 63])
def test_keys_are_hashed_to_fewer_bits_as_in_a_run(bits):
    assert key("c", "x", hash_bits=bits) == hashed(keys_of("c", ["x"]), bits)[0] < 1 << bits


@pytest.mark.parametrize(
    "value",
    [b"x", [1], {}, (1,), 1j, timedelta(1), np.timedelta64(1, "s"), object(), 10**2000,
     Decimal("1e5000"), "\ud800", np.array([1, 2])],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_other_values_are_refused(value):
    with pytest.raises(InvalidValue):
        key("c", value)


@pytest.mark.parametrize(
    ("column", "options", "says"),
    [
        (3, {}, "a column's name is a text, not int"),
        ("\ud800", {}, "is not Unicode"),
        ("c", {"hash_bits": 64}, "hash_bits is 64, and has to be in 0..63"),
        ("c", {"hash_bits": -1}, "has to be in"),
        ("c", {"hash_bits": 1.5}, "has to be in"),
        ("c", {"numeric": True}, "'x' is no number"),
    ],
)
def test_other_arguments_are_refused(column, options, says):
    with pytest.raises(InvalidValue, match=says):
        key(column, "x", **options)


VALUES = st.one_of(
    st.text(),
    st.from_regex(r"-?[0-9]{1,3}(\.[0-9]{0,3})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.from_regex(
        r"20[0-9]{2}-[01][0-9]-[0-3][0-9][ T][0-2][0-9]:[0-5][0-9](:[0-5][0-9](\.[0-9]{1,7})?)?"
        r"(Z|[+-][01][0-9]:?[0-9]{2})?",
        fullmatch=True,
    ),
    st.integers(),
    st.floats(),
    st.floats(width=32).map(np.float32),
    st.booleans(),
    st.decimals(allow_nan=False, places=3) | st.decimals(-10, 10),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.times(),
)


@given(VALUES)
def test_the_text_of_a_text_is_itself(value):
    """So what is exported as a value is one with the same key."""
    try:
        text = text_of(value)
    except InvalidValue:
        return
    assert text != ""
    if text is not None:
        assert text_of(text) == text
        assert meanings([text]) == [text]


@given(st.lists(st.text() | st.sampled_from([*MISSING[7:], *THEMSELVES]), max_size=5))
def test_many_texts_are_as_one_by_one(texts):
    assert meanings(texts) == [text_of(text) or "" for text in texts]


# ---------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("number", "bucket"),
    [(1, 0), (2, 4), (3, 6), (100, 26), (101.5, 26), (0.5, -4), (0, ZERO), (-0.0, ZERO),
     (-2, NEGATIVE + 4), (5e-324, -4296), (1.7976931348623157e308, 4096)],
)  # fmt: skip
def test_a_number_counts_by_its_bucket(number, bucket):
    assert buckets(np.array([number], float))[0].tolist() == [bucket]
    assert key("n", number, numeric=True) == keys_of("n", [str(bucket)])[0]
    assert key("n", number, numeric=True) == key("n", str(number), numeric=True)
    assert key("n", number, numeric=True) == key("n", Decimal(number), numeric=True)


def test_truth_values_are_numbers_and_infinities_are_none():
    assert (
        key("n", True, numeric=True) == key("n", "TRUE", numeric=True) == key("n", 1, numeric=True)
    )
    for value in (float("inf"), "-inf", 10**400, -(10**400), Decimal("1e999")):
        assert key("n", value, numeric=True) is None
    assert number_of("1e3") == number_of("+1000.") == 1000
    for value in ("1_000", "x", "0x1f", b"1", [1], timedelta(1), np.timedelta64(1, "s"), "٧"):
        with pytest.raises(InvalidValue, match="is no number"):
            number_of(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_bucket_has_the_bounds_of_its_numbers(number):
    [bucket], _ = buckets(np.array([number]))
    low, high = bounds_of(int(bucket))
    assert low * (1 - 1e-12 * np.sign(low)) <= number <= high * (1 + 1e-12 * np.sign(high))
    assert bucket in KNOWN


KNOWN = {*all_buckets()}


def test_a_bucket_is_about_a_fifth_wide():
    assert bounds_of(0) == (1.0, pytest.approx(1.189, abs=1e-3))
    assert bounds_of(NEGATIVE) == (pytest.approx(-1.189, abs=1e-3), -1.0)
    assert bounds_of(ZERO) == (0.0, 0.0)
    assert bounds_of(4096)[1] == float("inf")
