"""CSV and Parquet files, in parts."""

import pyarrow as pa
import pytest

from shoal.apps.ctr.columns.files import CsvFile, with_codes
from shoal.apps.ctr.columns.keys import key
from shoal.apps.ctr.columns.reader import TableReader
from shoal.apps.ctr.spec import CtrSpec

SPEC = CtrSpec(batch_size=100)


def codes(path):
    with CsvFile(path, {}, lambda row: "error") as file:
        schema = with_codes(path, file.schema)
    return [each.name for each in schema if each.type == pa.string()]


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (["00712", "10115"], True),
        (["10115", "00712"], True),
        (["-01", "1"], True),
        (["", "07"], True),
        (["10115", "712"], False),
        (["0", "-0", "10"], False),
        (["0.5", "1"], False),
        (["007.5", "1"], False),  # is no integer
    ],
)
def test_integers_with_leading_zeros_are_texts(tmp_path, values, found):
    path = tmp_path / "rows.csv"
    path.write_text("n,zip,label\n" + "".join(f"1,{value},0\n" for value in values))
    assert codes(path) == ["zip"] * found
    reader = TableReader(path, "csv", SPEC)
    assert reader.columns.categorical == ["zip"] * found
    [batch] = reader
    expected = [key("zip", value, numeric=not found) for value in values]
    keys = [key for key in expected if key is not None]
    assert [each for each in batch.keys.tolist() if each != key("n", 1, numeric=True)] == keys


def test_columns_that_are_named_are_as_they_are_named(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("zip,label\n007,1\n7,0\n")
    numeric = TableReader(path, "csv", CtrSpec(numeric="zip"))
    assert len({*next(iter(numeric)).keys.tolist()}) == 1
    categorical = TableReader(path, "csv", CtrSpec(categorical="zip"))
    assert next(iter(categorical)).keys.tolist() == [key("zip", "007"), key("zip", 7)]


def test_truth_values_of_a_column_of_numbers(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("flag,label\nTrue,1\nFalse,0\n,0\n")
    [batch] = TableReader(path, "csv", CtrSpec(numeric="flag"))
    assert batch.keys.tolist() == [key("flag", each, numeric=True) for each in (1, 0)]


def test_a_file_without_rows_or_with_one_name_twice_has_no_codes(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n")
    assert codes(path) == []
    path.write_text("a,a\n01,02\n")
    assert codes(path) == []
