"""Whole columns of pyarrow have the keys that their values have one by one."""

from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.apps.ctr.columns.arrays import distinct, kind_of, numbers
from shoal.apps.ctr.columns.keys import key, meanings, number_of, text_of
from shoal.apps.ctr.columns.values import ColumnKeys
from shoal.errors import DataCorrupt

FLOATS = st.floats(allow_nan=True)
YEARS = {"min_value": datetime(1700, 1, 1), "max_value": datetime(2200, 1, 1)}  # of nanoseconds
COLUMNS = {  # type: values
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32).map(np.float32),
    pa.float64(): FLOATS,
    pa.string(): st.text(),
    pa.large_string(): st.text(),
    pa.string_view(): st.text(),
    pa.dictionary(pa.int8(), pa.string()): st.sampled_from(["a", " a", "007", "7.0", "NA", "é"]),
    pa.dictionary(pa.int32(), pa.int64()): st.integers(-5, 5),
    pa.run_end_encoded(pa.int32(), pa.string()): st.sampled_from(["a", "", "True"]),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.timestamp("s"): st.datetimes().map(lambda x: x.replace(microsecond=0)),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("ns"): st.datetimes(**YEARS),
    pa.timestamp("ns", "Asia/Kolkata"): st.datetimes(**YEARS, timezones=st.just(UTC)),
    pa.time32("s"): st.times().map(lambda x: x.replace(microsecond=0)),
    pa.time64("ns"): st.times(),
    pa.decimal32(6, 2): st.decimals(-999, 999, places=2),
    pa.decimal64(12, 3): st.decimals(-999, 999, places=3),
    pa.decimal128(38, 10): st.decimals(-(10**6), 10**6, places=10),
    pa.decimal256(60, 10): st.decimals(-(10**6), 10**6, places=10),
    pa.null(): st.none(),
}
OTHERS = [
    pa.binary(),
    pa.large_binary(),
    pa.binary(4),
    pa.list_(pa.int64()),
    pa.list_(pa.float32(), 3),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
    pa.duration("s"),
    pa.month_day_nano_interval(),
    pa.uuid(),
]


def array(values, kind):
    if pa.types.is_run_end_encoded(kind):
        return pa.compute.run_end_encode(pa.array(values, kind.value_type))
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.decimal128(38, kind.scale)).cast(kind)
    return pa.array(values, kind)


@pytest.mark.parametrize("kind", COLUMNS, ids=str)
@settings(max_examples=30)
@given(data=st.data())
def test_a_column_has_the_keys_of_its_values(kind, data):
    values = data.draw(st.lists(st.none() | COLUMNS[kind], max_size=12))
    column = array(values, kind)
    assert texts_of(column) == [text_of(value) or "" for value in values]
    assert texts_of(column.slice(1)) == [text_of(value) or "" for value in values[1:]]
    found = distinct(column)
    keys, there = ColumnKeys("c", 1000).of(found.texts, found.final)
    assert [int(keys[at]) if there[at] else None for at in found.places] == [
        key("c", value) for value in values
    ]


def texts_of(column):
    """The keys' text of each row."""
    found = distinct(column)
    texts = found.texts if found.final else meanings(found.texts)
    return [texts[at] for at in found.places]


DAY = r"(1[6-9]|20|22)[0-9]{2}-[01][0-9]-[0-3][0-9]"
CLOCK = r"[0-2][0-9]:[0-6][0-9]"
ZONE = r"( ?Z|UTC|[+-][0-2][0-9](:?[0-5][0-9])?)"
SPELLINGS = {
    "plain": rf"{DAY} {CLOCK}:[0-5][0-9]",
    "midnight": rf"{DAY}[ T]00:00(:00(\.0{{1,9}})?)?",
    "fraction": rf"{DAY}T{CLOCK}:[0-5][0-9]\.[0-9]{{1,10}}",
    "zone": rf"{DAY}[ T]{CLOCK}(:[0-5][0-9](\.[0-9]{{3}})?)?{ZONE}",
    "any": rf"{DAY}([ T]{CLOCK}(:[0-5][0-9](\.[0-9]{{1,6}})?)?{ZONE}?)?",
    "odd": rf"({DAY}[ T][0-2][0-9]|[0-9]{{5}}-[0-9]{{2}}-[0-9]{{2}} {CLOCK}|2026-01-01 12\+01:00)",
}


@pytest.mark.parametrize("name", SPELLINGS)
@settings(max_examples=100)
@given(data=st.data())
def test_texts_of_datetimes_are_as_one_by_one(name, data):
    """Columns of them are read by pyarrow, which is faster, if all of them are."""
    spelled = st.from_regex(SPELLINGS[name], fullmatch=True)
    first = data.draw(spelled)
    texts = [first, *data.draw(st.lists(spelled | st.sampled_from(["", "NA", "?"]), max_size=4))]
    assert texts_of(pa.array([*texts, None])) == [*(text_of(text) or "" for text in texts), ""]


def test_columns_of_datetimes_are_read_at_once():
    for texts, expected in (
        (["", "2026-01-31 00:00:00", "NA", None, "2026-01-31T12:30:00.50"],
         ["2026-01-31", "2026-01-31 12:30:00.5"]),
        (["2026-01-31T00:00:00Z", "2026-01-31 12:30:00.000+01:00"],
         ["2026-01-31 00:00:00Z", "2026-01-31 11:30:00Z"]),
    ):  # fmt: skip
        found = distinct(pa.array(texts))
        assert found.final
        assert [text for text in found.texts if text] == expected
    for texts in (["2026-01-31 00:00:00", "soon"], ["2026-01-31"], ["2026-01-31 12:30:00 UTC"]):
        assert not distinct(pa.array(texts)).final


@pytest.mark.parametrize(
    "kind",
    [each for each in COLUMNS if kind_of(each) == "number" or each in (pa.bool_(), pa.null())],
    ids=str,
)
@settings(max_examples=30)
@given(data=st.data())
def test_a_column_has_the_numbers_of_its_values(kind, data):
    values = data.draw(st.lists(st.none() | COLUMNS[kind], max_size=12))
    np.testing.assert_array_equal(numbers(array(values, kind)), [number_of(v) for v in values])


def test_texts_are_numbers_where_they_are_asked_for():
    column = pa.array(["1.5", None, "", " NA ", "1e3", "True", "007", "-2.0"])
    expected = [1.5, np.nan, np.nan, np.nan, 1000, 1, 7, -2]
    for kind in (pa.string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())):
        np.testing.assert_array_equal(numbers(column.cast(kind)), expected)
    with pytest.raises(DataCorrupt, match="'old' is no number"):
        numbers(pa.array(["1", "old"]))
    with pytest.raises(DataCorrupt, match="values of type date32"):
        numbers(pa.array([date(2026, 1, 1)]))


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_other_types_have_no_keys(kind):
    assert kind_of(kind) == ""
    assert kind_of(pa.int64()) == kind_of(pa.decimal128(5, 2)) == "number"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.datetime64("10000-01-01T00:00:00", "s"), "10000-01-01"),
        (np.datetime64("10000-01-01T00:00:01", "ms"), "10000-01-01 00:00:01"),
        (np.datetime64("-0001-01-01T12:00:00", "s"), "-001-01-01 12:00:00"),
        (np.datetime64("0000-12-31", "D"), "0000-12-31"),
    ],
    ids=str,
)
def test_years_that_python_has_not_are_read_too(value, text):
    assert distinct(pa.array(np.array([value]))).texts == [text_of(value)] == [text]


def test_text_that_is_not_utf8_is_refused():
    bad = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")]
    )
    with pytest.raises(DataCorrupt, match="text that is not UTF-8"):
        distinct(bad)


def test_values_of_a_batch_are_found_once():
    days = [datetime(2026, 1, 1), None, datetime(2026, 1, 1)]
    found = distinct(pa.array(days))
    assert (found.texts, found.places.tolist()) == (["2026-01-01", ""], [0, 1, 0])
    assert texts_of(pa.array([time(1)])) == ["01:00:00"]
    assert texts_of(pa.array([Decimal("1.50")])) == ["1.5"]
    assert texts_of(pa.array([], pa.string())) == texts_of(pa.array([], pa.timestamp("s"))) == []
