"""The columns of a table that count."""

from datetime import timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from shoal.apps.ctr.columns.encoding import Columns
from shoal.apps.ctr.columns.keys import key
from shoal.apps.ctr.columns.reader import TableReader
from shoal.apps.ctr.spec import CtrSpec
from shoal.errors import DataCorrupt, InvalidValue

SPEC = CtrSpec(batch_size=10)


def columns(table, spec=SPEC):
    return Columns(spec, table.schema, "rows.parquet")


def encoded(table, spec=SPEC):
    return columns(table, spec).encoded(table.combine_chunks().to_batches()[0])


def test_columns_are_chosen_by_their_types():
    table = pa.table({
        "price": [Decimal("1.50")], "n": [1], "x": [1.5], "flag": [True], "city": ["Oslo"],
        "none": pa.nulls(1), "label": [1],
    })  # fmt: skip
    found = columns(table)
    assert (found.categorical, found.numeric) == (["flag", "city", "none"], ["price", "n", "x"])
    assert found.chosen
    assert not columns(table, replace(SPEC, numeric="n")).chosen
    assert found.wanted == ["flag", "city", "none", "price", "n", "x", "label"]
    batch = encoded(table)
    assert batch.keys.tolist() == [
        key("flag", True), key("city", "Oslo"), key("price", "1.5", numeric=True),
        key("n", 1, numeric=True), key("x", 1.5, numeric=True),
    ]  # fmt: skip
    assert batch.fields.tolist() == [0, 1, 3, 4, 5]


ODD = {
    "list<": pa.array([[1], [2]]),
    "struct<": pa.array([{"a": 1}, {"a": 2}]),
    "map<": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "binary": pa.array([b"a", b"b"]),
    "fixed_size_binary": pa.array([b"a", b"b"], pa.binary(1)),
    "duration": pa.array([timedelta(1), None]),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("options", [{}, {"categorical": "odd,city"}, {"numeric": "odd"}], ids=str)
def test_columns_without_keys_are_refused_by_file_and_name(tmp_path, name, options):
    path = tmp_path / "rows.parquet"
    table = pa.table({"city": ["a", "b"], "odd": ODD[name], "label": [0, 1]})
    pq.write_table(table, path)
    says = rf"rows\.parquet: column 'odd' has values of type {name}.*or leave it out \(--categor"
    with pytest.raises(DataCorrupt, match=says):
        TableReader(path, "parquet", replace(SPEC, **options))
    named = TableReader(path, "parquet", replace(SPEC, categorical="city"))
    assert [len(batch) for batch in named] == [2]  # it need not be read


@pytest.mark.parametrize("name", ODD)
def test_a_label_without_keys_is_refused(name):
    table = pa.table({"city": ["a", "b"], "label": ODD[name]})
    with pytest.raises(DataCorrupt, match=f"column 'label' has values of type {name}.*numbers$"):
        columns(table)


def test_columns_of_one_name_are_refused():
    table = pa.table([pa.array([1]), pa.array([2]), pa.array([1])], ["x", "y", "y"])
    with pytest.raises(InvalidValue, match="a column is named twice"):
        columns(table)
    for options in ({"numeric": "y"}, {"numeric": "x", "label": "y"}):
        with pytest.raises(DataCorrupt, match="two columns have the name 'y'"):
            columns(table, replace(SPEC, **options))
    assert columns(table, replace(SPEC, numeric="x")).numeric == ["x"]


@pytest.mark.parametrize(
    ("labels", "options", "found"),
    [
        ([1.0, 0.0], {}, [1, 0]),
        (["1.000", " 0"], {}, [1, 0]),
        (["+1", "-1"], {}, [1, 0]),
        ([Decimal("1.0"), Decimal("-1.0")], {}, [1, 0]),
        (["TRUE", "False"], {}, [1, 0]),
        ([2, 1], {"positive": "2.0"}, [1, 0]),
        (["yes", "no"], {"positive": " yes", "negative": "no"}, [1, 0]),
        (["yes", None, "maybe"], {"positive": "yes"}, [1, 0, 0]),
    ],
)
def test_labels(labels, options, found):
    table = pa.table({"x": ["a"] * len(labels), "label": labels})
    assert encoded(table, replace(SPEC, **options)).labels.tolist() == found


@pytest.mark.parametrize(
    ("labels", "options", "says"),
    [
        ([2, 1], {}, r"expected a label of 1, 0 or -1, not '2' \(--positive VALUE"),
        (["yes", "n/a"], {"positive": "yes", "negative": "no"}, "of 'yes' or 'no', not 'n/a'"),
        ([1, None], {}, "not nothing"),
    ],
)
def test_other_labels_are_refused(labels, options, says):
    table = pa.table({"x": ["a"] * len(labels), "label": labels})
    with pytest.raises(DataCorrupt, match=f"rows.parquet: column 'label': .*{says}"):
        encoded(table, replace(SPEC, **options))


def test_large_integers_are_numbers():
    table = pa.table({"n": pa.array([2**63 - 1, 2**53 + 1]), "label": [0, 1]})
    found = encoded(table).keys.tolist()
    assert found == [key("n", 2.0**63, numeric=True), key("n", 2.0**53, numeric=True)]
