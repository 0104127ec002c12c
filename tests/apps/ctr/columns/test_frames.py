"""Tables of callers, in memory."""

from datetime import date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from shoal.apps.ctr.columns.frames import batch_of_table, is_table
from shoal.apps.ctr.columns.keys import key
from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import DataCorrupt, InvalidValue

SPEC = CtrSpec(format="csv", categorical="c", numeric="n", label="label")
MIXED = [1, "a", 2.0, True, None, date(2026, 1, 1), datetime(2026, 1, 1, 12), Decimal("7.0")]


def keys(values, numbers=None):
    rows = {"c": values, "n": [None] * len(values) if numbers is None else numbers}
    return batch_of_table(SPEC, rows).keys.tolist()


def test_values_of_python_are_taken_one_by_one():
    """pyarrow would refuse some, and make the time a date."""
    expected = [key("c", value) for value in MIXED if value is not None]
    objects = np.empty(len(MIXED), object)
    objects[:] = MIXED
    for values in (MIXED, tuple(MIXED), objects):
        assert keys(values) == expected
    assert keys([None] * 3, [True, Decimal("2.5"), "NA"]) == [
        key("n", 1, numeric=True), key("n", 2.5, numeric=True)]  # fmt: skip


class Series:
    """A column of another library."""

    def __init__(self, array):
        self.array = pa.chunked_array([array])

    def __len__(self):
        return len(self.array)

    def __arrow_c_stream__(self, schema=None):
        return self.array.__arrow_c_stream__(schema)


class Frame(dict):
    """A table as that of pandas."""

    iloc = None


@pytest.mark.parametrize(
    "values",
    [
        np.array([7, 8]),
        np.array(["a", "007"]),
        np.array(["2026-01-01T00:00:00.000000001", "2026-01-02"], "datetime64[ns]"),
        np.array([0.1, np.nan], np.float32),
        np.array([True, False]),
        pa.array([7, None]),
        pa.array(["a", "b", "a"]).dictionary_encode(),
        ["a", None, " b"],
    ],
    ids=str,
)
def test_columns_of_libraries_have_the_keys_of_their_values(values):
    listed = values.to_pylist() if isinstance(values, pa.Array) else list(values)
    expected = [found for value in listed if (found := key("c", value)) is not None]
    assert keys(values) == expected
    if not isinstance(values, list):
        assert keys(Series(pa.array(values))) == expected
    frame = Frame(c=values, n=np.full(len(listed), np.nan), more=[object()] * len(listed))
    assert batch_of_table(SPEC, frame).keys.tolist() == expected


@pytest.mark.parametrize(
    ("rows", "error", "says"),
    [
        ({"c": ["a"], "n": ["old"]}, DataCorrupt, "column 'n' is no number: 'old' is no number"),
        ({"c": [b"a"], "n": [1]}, DataCorrupt, "column 'c' cannot be read: a value of type bytes"),
        ({"c": [[1]], "n": [1]}, DataCorrupt, "column 'c' cannot be read: a value of type list"),
        ({"c": pa.array([b"a"]), "n": [1]}, DataCorrupt, "column 'c' has values of type binary"),
        ({"c": ["a"]}, DataCorrupt, r"no column n \(columns: c\)"),
        (
            {"c": ["a"], "n": [1], "x": [1, 2]},
            DataCorrupt,
            r"columns differ in length \(c 1, n 1, x 2\)",
        ),
        ({"c": "a", "n": [1]}, InvalidValue, "got text"),
        ({"c": ["a"], "n": 3}, InvalidValue, "a column is a list of values"),
        ({"c": ["\ud800"], "n": [1]}, InvalidValue, "surrogates not allowed"),
        ({"c": [], "n": []}, DataCorrupt, "no rows"),
    ],
    ids=lambda value: "rows" if isinstance(value, dict) else str(value),
)
def test_other_tables_are_refused(rows, error, says):
    assert is_table(rows)
    with pytest.raises(error, match=f"rows: .*{says}"):
        batch_of_table(SPEC, rows)


def test_lists_are_no_tables():
    assert not is_table([{"c": "a"}])
