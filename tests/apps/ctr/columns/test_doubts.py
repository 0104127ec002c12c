"""Warnings of columns that are no features as they are."""

import numpy as np
import pyarrow as pa
import pytest

from shoal.apps.ctr.columns.doubts import codes_among_numbers, unique_ids
from shoal.apps.ctr.columns.encoding import Columns
from shoal.apps.ctr.columns.values import ColumnKeys
from shoal.apps.ctr.spec import CtrSpec

RANDOM = np.random.default_rng(0)
ROWS = 1000


def warned(name, values, spec=None, **others):
    table = pa.table({name: values, **others, "label": np.zeros(len(values), int)})
    columns = Columns(spec or CtrSpec(), table.schema, "rows")
    return codes_among_numbers(columns, table.to_batches()[0])


CODES = {
    "user_id": RANDOM.integers(1, 500, ROWS),
    "userId": RANDOM.integers(1, 500, ROWS),
    "ZIP": RANDOM.integers(1, 99999, ROWS),
    "zip_code_2": RANDOM.integers(1, 99999, ROWS),
    "id": RANDOM.integers(1, 500, ROWS).astype(float),
    "year": RANDOM.integers(1990, 2026, ROWS),
    "time": 1_700_000_000 + np.arange(ROWS) * 60,
    "digest": RANDOM.integers(-(2**62), 2**62, ROWS),
    "row": np.arange(ROWS),
    "row_from_1": RANDOM.permutation(ROWS) + 1,
}
NUMBERS = {
    "age": RANDOM.integers(16, 90, ROWS),
    "hour": RANDOM.integers(0, 24, ROWS),
    "count": RANDOM.geometric(0.1, ROWS),
    "cents": RANDOM.lognormal(5, 2, ROWS).astype(int),
    "ratio_id": RANDOM.random(ROWS),
    "kind_id": RANDOM.integers(0, 4, ROWS),  # a bucket for each
    "paid": RANDOM.integers(1, 1000, ROWS),
    "few_id": np.arange(50),
}


@pytest.mark.parametrize("name", CODES)
def test_integers_that_look_like_codes_are_named_with_what_to_do(name):
    [text] = warned(name, CODES[name], city=["x"] * ROWS, price=RANDOM.random(ROWS))
    assert f"integer columns that look like codes or ids are read as numbers: {name} (" in text
    assert f'use --categorical "city,{name}" --numeric "price"' in text
    assert f'to keep them as numbers, use --categorical "city" --numeric "{name},price"' in text
    missing = np.where(np.arange(ROWS) % 7 == 0, np.nan, CODES[name].astype(float))
    assert warned(name, missing)  # integers that a reader has made floats


@pytest.mark.parametrize("name", NUMBERS)
def test_nothing_is_said_of_numbers(name):
    assert warned(name, NUMBERS[name]) == []


@pytest.mark.parametrize("options", [{"numeric": "user_id"}, {"categorical": "user_id"}])
def test_nothing_is_said_of_columns_that_the_run_names(options):
    assert warned("user_id", CODES["user_id"], CtrSpec(**options)) == []


def test_all_columns_are_in_one_warning():
    [text] = warned("user_id", CODES["user_id"], year=CODES["year"])
    assert "user_id (by its name), year (36 values of similar size)" in text


def seen(values, rows):
    column = ColumnKeys("c", 10)
    column.of([f"v{number}" for number in values])
    column.count(rows)
    return column.seen()


@pytest.mark.parametrize(
    ("values", "rows", "found"),
    [
        (1000, 1000, True),
        (950, 1000, True),
        (50_000, 50_000, True),
        (800, 1000, False),
        (25_000, 50_000, False),
        (99, 99, False),  # too few to say
        (0, 0, False),
    ],
)
def test_values_that_do_not_come_again_are_named(values, rows, found):
    told = unique_ids(
        {"c": seen(range(values), rows), "d": seen(range(3), 1000)}, ["c", "d"], ["n"]
    )
    assert bool(told) is found
    if found:
        assert "values of these columns occur once: c (" in told[0]
        assert told[0].endswith('leave the columns out: --categorical "d" --numeric "n"')


def test_a_column_that_is_the_only_one_is_named_too():
    [told] = unique_ids({"c": seen(range(500), 500)}, ["c"], [])
    assert told.endswith("leave the columns out")
    assert unique_ids({}, [], []) == []
